"""GPT-NeoX and Pythia: each head holds its query, key and value side by side."""

from torch import nn
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer, GPTNeoXRotaryEmbedding

from orchestrator.models.families.family import FamilyModules, HfNames, LocalHeads, Part, Region


def _localize(attention: nn.Module, heads: LocalHeads) -> None:
    """Its attention counts its heads by its projection."""


GPT_NEOX = FamilyModules(
    block=GPTNeoXLayer,
    final_norm=lambda config: nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps),
    rotary=GPTNeoXRotaryEmbedding,
    attention=Region(
        module="attention", columns={"query_key_value": (Part.query_key_value,)}, row="dense", row_part=Part.query
    ),
    mlp=Region(module="mlp", columns={"dense_h_to_4h": (Part.intermediate,)}, row="dense_4h_to_h", row_part=Part.intermediate),
    localize=_localize,
    names=HfNames(
        embedding="gpt_neox.embed_in", blocks="gpt_neox.layers", final_norm="gpt_neox.final_layer_norm", head="embed_out"
    ),
    embedding_dropout=lambda config: float(config.hidden_dropout),
)
