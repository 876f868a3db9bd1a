"""Parameter counts of the parts of a model, from widths that tensor parallelism may already have cut.

Every width is an int or an integer numpy array; arrays broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.planning.families import FamilyFacts, NormKind

Size: TypeAlias = Any
"""A count or a number of bytes: an int, or a numpy array of them when an argument was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWidths:
    """Widths of the tensors inside one layer, as one tensor-parallel rank holds them."""

    query: Size
    """Query heads x head_dim."""
    key_value: Size
    """Key (or value) heads x head_dim."""
    intermediate: Size
    """Width of the MLP."""


def ceil_divide(size: Size, parts: Size) -> Size:
    """``size / parts`` rounded up: the largest share when ``parts`` ranks split ``size`` things."""
    return -(-size // parts)


def norm_parameters(facts: FamilyFacts, hidden_size: int) -> int:
    """Parameters of one norm over the residual stream."""
    return hidden_size * (2 if facts.norm is NormKind.layer_norm else 1)


def layer_matrix_parameters(facts: FamilyFacts, hidden_size: int, widths: LayerWidths) -> Size:
    """Elements of the matrices of one layer: query, key, value and output of the attention, and the MLP."""
    attention = 2 * widths.query + 2 * widths.key_value
    mlp = widths.intermediate * (3 if facts.gated_mlp else 2)
    return hidden_size * (attention + mlp)


def layer_vector_parameters(
    facts: FamilyFacts, hf_config: Mapping[str, Any], hidden_size: int, head_dim: int, widths: LayerWidths
) -> Size:
    """Biases and norm weights of one layer. Norms and the biases of the two output matrices are whole on every rank."""
    query_key_value_bias = facts.query_key_value_bias.of(hf_config) * (widths.query + 2 * widths.key_value)
    attention_output_bias = facts.attention_output_bias.of(hf_config) * hidden_size
    mlp_bias = facts.mlp_bias.of(hf_config) * (widths.intermediate * (2 if facts.gated_mlp else 1) + hidden_size)
    norms = facts.norms_per_layer * norm_parameters(facts, hidden_size) + facts.query_key_norm * 2 * head_dim
    return query_key_value_bias + attention_output_bias + mlp_bias + norms
