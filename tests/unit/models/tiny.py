"""Tiny models of every family."""

from __future__ import annotations

from typing import Any

from orchestrator.config.enums import AttentionImplementation, Family
from orchestrator.planning.families import FAMILIES
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_hf

_COMMON = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 128,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "llama": {**_COMMON, "num_key_value_heads": 2},
    "mistral": {**_COMMON, "num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {**_COMMON, "num_key_value_heads": 2},
    "qwen3": {**_COMMON, "num_key_value_heads": 2, "head_dim": 16},
    "gpt_neox": _COMMON,
    "gemma2": {**_COMMON, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16, "pad_token_id": None},
    "phi3": {**_COMMON, "num_key_value_heads": 2, "pad_token_id": None},
}


def tiny_spec(
    model_type: str,
    *,
    attention: AttentionImplementation | None = None,
    dropout: float = 0.0,
    **entries: Any,
) -> ModelSpec:
    """A two-layer model of a family, with further entries of its Hugging Face config.

    ``attention`` is sdpa where Hugging Face has it for the family.
    """
    sdpa = FAMILIES[Family(model_type)].sdpa
    attention = attention or (AttentionImplementation.sdpa if sdpa else AttentionImplementation.eager)
    hf_config = {"model_type": model_type, **TINY[model_type], **entries}
    return model_spec_from_hf(hf_config, name="tiny", attention_implementation=attention, dropout=dropout)
