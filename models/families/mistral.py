"""Mistral."""

from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralRMSNorm, MistralRotaryEmbedding

from orchestrator.models.families.family import GATED_MLP, SEPARATE_ATTENTION, FamilyModules, grouped_query_heads

MISTRAL = FamilyModules(
    block=MistralDecoderLayer,
    final_norm=lambda config: MistralRMSNorm(config.hidden_size, eps=config.rms_norm_eps),
    rotary=MistralRotaryEmbedding,
    attention=SEPARATE_ATTENTION,
    mlp=GATED_MLP,
    localize=grouped_query_heads,
)
