"""Phi-3: query, key and value come out of one matrix, gate and up projection out of another."""

from copy import copy
from typing import Any

from transformers.models.phi3.modeling_phi3 import Phi3DecoderLayer, Phi3RMSNorm, Phi3RotaryEmbedding

from orchestrator.models.families.family import FamilyModules, LocalHeads, Part, Region


def _localize(attention: Any, heads: LocalHeads) -> None:
    """Its attention cuts the packed projections at the head counts of its config."""
    attention.config = copy(attention.config)
    attention.config.num_attention_heads = heads.query
    attention.num_key_value_heads = heads.key_value
    attention.num_key_value_groups = heads.query // heads.key_value


PHI3 = FamilyModules(
    block=Phi3DecoderLayer,
    final_norm=lambda config: Phi3RMSNorm(config.hidden_size, eps=config.rms_norm_eps),
    rotary=Phi3RotaryEmbedding,
    attention=Region(
        module="self_attn",
        columns={"qkv_proj": (Part.query, Part.key_value, Part.key_value)},
        row="o_proj",
        row_part=Part.query,
    ),
    mlp=Region(
        module="mlp",
        columns={"gate_up_proj": (Part.intermediate, Part.intermediate)},
        row="down_proj",
        row_part=Part.intermediate,
    ),
    localize=_localize,
)
