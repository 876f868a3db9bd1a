"""Gemma 2: scaled embeddings, capped logits, and a norm on both sides of attention and MLP."""

import math

from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer, Gemma2RMSNorm, Gemma2RotaryEmbedding

from orchestrator.models.families.family import GATED_MLP, SEPARATE_ATTENTION, FamilyModules, grouped_query_heads

GEMMA2 = FamilyModules(
    block=Gemma2DecoderLayer,
    final_norm=lambda config: Gemma2RMSNorm(config.hidden_size, eps=config.rms_norm_eps),
    rotary=Gemma2RotaryEmbedding,
    attention=SEPARATE_ATTENTION,
    mlp=GATED_MLP,
    localize=grouped_query_heads,
    embedding_scale=lambda config: math.sqrt(config.hidden_size),
    logits_softcap=lambda config: config.final_logit_softcapping,
)
