"""Qwen 2 and 2.5."""

from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm, Qwen2RotaryEmbedding

from orchestrator.models.families.family import GATED_MLP, SEPARATE_ATTENTION, FamilyModules, grouped_query_heads

QWEN2 = FamilyModules(
    block=Qwen2DecoderLayer,
    final_norm=lambda config: Qwen2RMSNorm(config.hidden_size, eps=config.rms_norm_eps),
    rotary=Qwen2RotaryEmbedding,
    attention=SEPARATE_ATTENTION,
    mlp=GATED_MLP,
    localize=grouped_query_heads,
)
