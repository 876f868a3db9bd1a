"""The shape of a model: Hugging Face's names, exact parameter counts, and the config Hugging Face builds it from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.enums import AttentionImplementation, Family
from orchestrator.config.schema import ModelConfig
from orchestrator.errors import ConfigurationError
from orchestrator.planning.families import FAMILIES, FamilyFacts
from orchestrator.planning.hf_config import HfModel, complete_hf_config, hf_config_from_options
from orchestrator.planning.parameters import (
    LayerWidths,
    Size,
    ceil_divide,
    layer_matrix_parameters,
    layer_vector_parameters,
    norm_parameters,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only language model of a known family.

    ``hf_config`` is the complete Hugging Face config as plain data, ``model_type`` included: the model is built from it and
    from nothing else. The counts are those of the whole Hugging Face causal language model on one device; what one
    tensor-parallel rank holds is in ``orchestrator.planning.layers``.
    """

    name: str
    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_implementation: AttentionImplementation
    dropout: float
    hf_config: Mapping[str, Any] = field(hash=False)

    @property
    def facts(self) -> FamilyFacts:
        """What is known of the family."""
        return FAMILIES[self.family]

    def layer_widths(self, tensor_parallel_size: Size = 1) -> LayerWidths:
        """Widths inside a layer on one tensor-parallel rank. Heads are split whole; a key head is copied rather than cut."""
        return LayerWidths(
            query=ceil_divide(self.num_attention_heads, tensor_parallel_size) * self.head_dim,
            key_value=ceil_divide(self.num_key_value_heads, tensor_parallel_size) * self.head_dim,
            intermediate=ceil_divide(self.intermediate_size, tensor_parallel_size),
        )

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding, and of the position embedding where it is learned."""
        positions = self.max_position_embeddings if self.facts.learned_positions else 0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer; all layers are alike."""
        widths = self.layer_widths()
        matrices = layer_matrix_parameters(self.facts, self.hidden_size, widths)
        return int(matrices + layer_vector_parameters(self.facts, self.hf_config, self.hidden_size, self.head_dim, widths))

    @property
    def final_norm_parameters(self) -> int:
        """Parameters of the norm before the head."""
        return norm_parameters(self.facts, self.hidden_size)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head; none when it is the token embedding."""
        return 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, a tied weight counted once."""
        layers = self.num_hidden_layers * self.layer_parameters
        return self.embedding_parameters + layers + self.final_norm_parameters + self.head_parameters


def model_spec_from_config(config: ModelConfig) -> ModelSpec:
    """The model that the options describe: a shape of their own, or a local Hugging Face ``config.json``.

    Raises ConfigurationError with every problem at once: an unknown family, a size that is missing, contradicts another or
    does not divide, an unreadable ``config.json``, a Hugging Face entry that does not exist.
    """
    hf_model, findings = hf_config_from_options(config)
    if hf_model is None:
        raise ConfigurationError(findings)
    return _spec(hf_model, config.name, config.attention_implementation, config.dropout)


def model_spec_from_hf(
    hf_config: Mapping[str, Any], *, name: str, attention_implementation: AttentionImplementation, dropout: float
) -> ModelSpec:
    """The model that a Hugging Face config describes; entries it leaves out have Hugging Face's defaults.

    Raises ConfigurationError with every problem at once, as ``model_spec_from_config`` does.
    """
    hf_model, findings = complete_hf_config(hf_config, dropout=dropout, attention=attention_implementation)
    if hf_model is None:
        raise ConfigurationError(findings)
    return _spec(hf_model, name, attention_implementation, dropout)


def _spec(hf_model: HfModel, name: str, attention_implementation: AttentionImplementation, dropout: float) -> ModelSpec:
    return ModelSpec(
        name=name,
        family=hf_model.family,
        tie_word_embeddings=hf_model.tie_word_embeddings,
        attention_implementation=attention_implementation,
        dropout=dropout,
        hf_config=hf_model.entries,
        **hf_model.sizes,
    )
