"""GPT-2: learned positions, and matrices that Hugging Face keeps transposed."""

from typing import Any

from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from orchestrator.models.families.family import FamilyModules, HfNames, LocalHeads, Part, Region


def _localize(attention: Any, heads: LocalHeads) -> None:
    attention.num_heads = heads.query
    attention.split_size = heads.query * attention.head_dim


GPT2 = FamilyModules(
    block=GPT2Block,
    final_norm=lambda config: nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon),
    rotary=None,
    attention=Region(
        module="attn",
        columns={"c_attn": (Part.query, Part.key_value, Part.key_value)},
        row="c_proj",
        row_part=Part.query,
    ),
    mlp=Region(module="mlp", columns={"c_fc": (Part.intermediate,)}, row="c_proj", row_part=Part.intermediate),
    localize=_localize,
    names=HfNames(
        embedding="transformer.wte", positions="transformer.wpe", blocks="transformer.h", final_norm="transformer.ln_f"
    ),
    embedding_dropout=lambda config: float(config.embd_pdrop),
    attention_dropout=lambda config: float(config.attn_pdrop),
)
