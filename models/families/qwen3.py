"""Qwen 3: a norm over each query and key head, whose weight every rank holds whole."""

from dataclasses import replace

from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding

from orchestrator.models.families.family import GATED_MLP, SEPARATE_ATTENTION, FamilyModules, grouped_query_heads

QWEN3 = FamilyModules(
    block=Qwen3DecoderLayer,
    final_norm=lambda config: Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps),
    rotary=Qwen3RotaryEmbedding,
    attention=replace(SEPARATE_ATTENTION, partial=("q_norm", "k_norm")),
    mlp=GATED_MLP,
    localize=grouped_query_heads,
)
