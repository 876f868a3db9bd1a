"""What the torch side has to know of a family: its Hugging Face classes, where its blocks' regions are, how they are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from orchestrator.models.shards import Block
from orchestrator.planning.model_spec import ModelSpec


class Part(StrEnum):
    """What the rows of a column-parallel matrix, or the columns of a row-parallel one, are; none of its units is cut."""

    query = "query"
    """Query heads."""
    key_value = "key_value"
    """Key heads, or value heads."""
    query_key_value = "query_key_value"
    """Heads that hold their query, key and value side by side."""
    intermediate = "intermediate"
    """Columns of the MLP."""

    def block(self, spec: ModelSpec) -> Block:
        """The units of a model."""
        match self:
            case Part.query:
                return Block(units=spec.num_attention_heads, unit_size=spec.head_dim)
            case Part.key_value:
                return Block(units=spec.num_key_value_heads, unit_size=spec.head_dim)
            case Part.query_key_value:
                return Block(units=spec.num_attention_heads, unit_size=3 * spec.head_dim)
            case Part.intermediate:
                return Block(units=spec.intermediate_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a block that starts from the whole residual stream and ends in one sum over the tensor-parallel ranks.

    ``module`` is entered; its ``columns`` are column-parallel matrices (name -> what their rows are, one part after the
    other), and ``row``, the row-parallel matrix that leaves the region, has columns of the last kind.
    """

    module: str
    columns: Mapping[str, tuple[Part, ...]]
    row: str
    row_part: Part
    partial: tuple[str, ...] = ()
    """Modules inside whose parameters are whole on every rank and see a share of the heads (norms of query and key)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHeads:
    """Heads that one tensor-parallel rank works on."""

    query: int
    key_value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HfNames:
    """Where Hugging Face's causal language model keeps its parts."""

    embedding: str = "model.embed_tokens"
    positions: str | None = None
    blocks: str = "model.layers"
    final_norm: str = "model.norm"
    head: str = "lm_head"


def _no_dropout(config: PretrainedConfig) -> float:  # noqa: ARG001 - one of several readers of a config
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyModules:
    """The Hugging Face classes of a family, and how tensor parallelism cuts its blocks."""

    block: type[nn.Module]
    """Built as ``block(config, layer_idx)``."""
    final_norm: Callable[[PretrainedConfig], nn.Module]
    rotary: type[nn.Module] | None
    """Built as ``rotary(config=config)``; None with learned positions."""
    attention: Region
    mlp: Region
    localize: Callable[[nn.Module, LocalHeads], None]
    """Tells an attention module how many heads its rank has."""
    names: HfNames = field(default_factory=HfNames)
    embedding_scale: Callable[[PretrainedConfig], float | None] = lambda config: None  # noqa: ARG005
    """What the embedding's output is multiplied with, if anything."""
    logits_softcap: Callable[[PretrainedConfig], float | None] = lambda config: None  # noqa: ARG005
    """``cap`` where the logits are ``cap * tanh(logits / cap)``."""
    embedding_dropout: Callable[[PretrainedConfig], float] = _no_dropout
    attention_dropout: Callable[[PretrainedConfig], float] = lambda config: float(config.attention_dropout)


def grouped_query_heads(attention: Any, heads: LocalHeads) -> None:
    """``localize`` of the families whose attention derives everything else from its projections."""
    attention.num_key_value_groups = heads.query // heads.key_value


SEPARATE_ATTENTION = Region(
    module="self_attn",
    columns={"q_proj": (Part.query,), "k_proj": (Part.key_value,), "v_proj": (Part.key_value,)},
    row="o_proj",
    row_part=Part.query,
)
"""Attention with a matrix each for query, key and value."""
GATED_MLP = Region(
    module="mlp",
    columns={"gate_proj": (Part.intermediate,), "up_proj": (Part.intermediate,)},
    row="down_proj",
    row_part=Part.intermediate,
)
"""An MLP with a gate and an up projection."""
