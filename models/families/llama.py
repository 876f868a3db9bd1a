"""Llama 2 and 3."""

from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from orchestrator.models.families.family import GATED_MLP, SEPARATE_ATTENTION, FamilyModules, grouped_query_heads

LLAMA = FamilyModules(
    block=LlamaDecoderLayer,
    final_norm=lambda config: LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps),
    rotary=LlamaRotaryEmbedding,
    attention=SEPARATE_ATTENTION,
    mlp=GATED_MLP,
    localize=grouped_query_heads,
)
