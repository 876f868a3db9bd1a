"""The parameters of Hugging Face's causal language models: name, shape, and the layer of the list that holds each.

Layers are numbered as in ``orchestrator.planning.partition``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from orchestrator.config.enums import Family
from orchestrator.planning.families import NormKind
from orchestrator.planning.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedParameter:
    """One parameter of Hugging Face's model. ``layer`` is its place in the list of layers."""

    name: str
    shape: tuple[int, ...]
    layer: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelling:
    """How a family spells its modules, as checkpoints do. ``prefix`` is the module of everything but the head."""

    prefix: str
    embedding: str
    blocks: str
    attention: str
    query_key_value: tuple[str, ...]
    attention_output: str
    mlp_inputs: tuple[str, ...]
    mlp_output: str
    norms: tuple[str, ...]
    final_norm: str
    head: str = "lm_head"


_LLAMA = _Spelling(
    prefix="model",
    embedding="embed_tokens",
    blocks="layers",
    attention="self_attn",
    query_key_value=("q_proj", "k_proj", "v_proj"),
    attention_output="o_proj",
    mlp_inputs=("gate_proj", "up_proj"),
    mlp_output="down_proj",
    norms=("input_layernorm", "post_attention_layernorm"),
    final_norm="norm",
)
_GEMMA2_NORMS = (*_LLAMA.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _spelling(family: Family) -> _Spelling:
    match family:
        case Family.gpt2:
            return _Spelling(
                prefix="transformer",
                embedding="wte",
                blocks="h",
                attention="attn",
                query_key_value=("c_attn",),
                attention_output="c_proj",
                mlp_inputs=("c_fc",),
                mlp_output="c_proj",
                norms=("ln_1", "ln_2"),
                final_norm="ln_f",
            )
        case Family.gpt_neox:
            return _Spelling(
                prefix="gpt_neox",
                embedding="embed_in",
                blocks="layers",
                attention="attention",
                query_key_value=("query_key_value",),
                attention_output="dense",
                mlp_inputs=("dense_h_to_4h",),
                mlp_output="dense_4h_to_h",
                norms=_LLAMA.norms,
                final_norm="final_layer_norm",
                head="embed_out",
            )
        case Family.phi3:
            return _replaced(query_key_value=("qkv_proj",), mlp_inputs=("gate_up_proj",))
        case Family.gemma2:
            return _replaced(norms=_GEMMA2_NORMS)
        case _:
            return _LLAMA


def _replaced(
    *,
    query_key_value: tuple[str, ...] = _LLAMA.query_key_value,
    mlp_inputs: tuple[str, ...] = _LLAMA.mlp_inputs,
    norms: tuple[str, ...] = _LLAMA.norms,
) -> _Spelling:
    return _Spelling(
        prefix=_LLAMA.prefix,
        embedding=_LLAMA.embedding,
        blocks=_LLAMA.blocks,
        attention=_LLAMA.attention,
        query_key_value=query_key_value,
        attention_output=_LLAMA.attention_output,
        mlp_inputs=mlp_inputs,
        mlp_output=_LLAMA.mlp_output,
        norms=norms,
        final_norm=_LLAMA.final_norm,
    )


def named_parameters(spec: ModelSpec) -> tuple[NamedParameter, ...]:
    """Every parameter of Hugging Face's model; a tied head is the embedding's and has no entry of its own."""
    spelling, hidden = _spelling(spec.family), spec.hidden_size
    prefix = spelling.prefix
    found = [NamedParameter(name=f"{prefix}.{spelling.embedding}.weight", shape=(spec.vocab_size, hidden), layer=0)]
    first_block = 1
    if spec.facts.learned_positions:
        found.append(NamedParameter(name=f"{prefix}.wpe.weight", shape=(spec.max_position_embeddings, hidden), layer=1))
        first_block = 2
    block = list(_block(spec, spelling))
    for index in range(spec.num_hidden_layers):
        module = f"{prefix}.{spelling.blocks}.{index}"
        found += [NamedParameter(name=f"{module}.{name}", shape=shape, layer=first_block + index) for name, shape in block]
    norm = first_block + spec.num_hidden_layers
    found += [
        NamedParameter(name=f"{prefix}.{name}", shape=shape, layer=norm) for name, shape in _norm(spec, spelling.final_norm)
    ]
    if not spec.tie_word_embeddings:
        found.append(NamedParameter(name=f"{spelling.head}.weight", shape=(spec.vocab_size, hidden), layer=norm + 1))
    return tuple(found)


def frozen_parameters(spec: ModelSpec, patterns: Sequence[str]) -> frozenset[str]:
    """The names that one of the regular expressions finds somewhere. Raises re.error for one that is none."""
    compiled = [re.compile(pattern) for pattern in patterns]
    names = (parameter.name for parameter in named_parameters(spec))
    return frozenset(name for name in names if any(pattern.search(name) for pattern in compiled))


def trainable_shares(spec: ModelSpec, patterns: Sequence[str]) -> tuple[float, ...]:
    """The share of each layer's parameters that is trained, in the order of the layers; a tied head counts as the embedding."""
    frozen = frozen_parameters(spec, patterns)
    parameters = named_parameters(spec)
    num_layers = max(parameter.layer for parameter in parameters) + 1 + spec.tie_word_embeddings
    total, trained = [0] * num_layers, [0] * num_layers
    for parameter in parameters:
        total[parameter.layer] += parameter.size
        trained[parameter.layer] += 0 if parameter.name in frozen else parameter.size
    if spec.tie_word_embeddings:
        total[-1], trained[-1] = total[0], trained[0]
    return tuple(part / whole for part, whole in zip(trained, total, strict=True))


def _block(spec: ModelSpec, spelling: _Spelling) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one transformer layer, without the module in front."""
    facts, hidden, widths = spec.facts, spec.hidden_size, spec.layer_widths()
    for norm in spelling.norms:
        yield from _norm(spec, norm)
    parts = (widths.query, widths.key_value, widths.key_value)
    outputs = (sum(parts),) if facts.fused_query_key_value else parts
    bias = facts.query_key_value_bias.of(spec.hf_config)
    for name, width in zip(spelling.query_key_value, outputs, strict=True):
        yield from _linear(spec, f"{spelling.attention}.{name}", hidden, width, bias=bias)
    if facts.query_key_norm:
        for name in ("q_norm", "k_norm"):
            yield f"{spelling.attention}.{name}.weight", (spec.head_dim,)
    bias = facts.attention_output_bias.of(spec.hf_config)
    yield from _linear(spec, f"{spelling.attention}.{spelling.attention_output}", widths.query, hidden, bias=bias)
    bias = facts.mlp_bias.of(spec.hf_config)
    width = widths.intermediate * (2 if facts.gated_mlp and len(spelling.mlp_inputs) == 1 else 1)
    for name in spelling.mlp_inputs:
        yield from _linear(spec, f"mlp.{name}", hidden, width, bias=bias)
    yield from _linear(spec, f"mlp.{spelling.mlp_output}", widths.intermediate, hidden, bias=bias)


def _linear(spec: ModelSpec, name: str, inputs: int, outputs: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """GPT-2's ``Conv1D`` lies the other way round than a linear layer."""
    yield f"{name}.weight", (inputs, outputs) if spec.family is Family.gpt2 else (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm(spec: ModelSpec, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (spec.hidden_size,)
    if spec.facts.norm is NormKind.layer_norm:
        yield f"{name}.bias", (spec.hidden_size,)
