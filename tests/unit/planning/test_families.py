"""The facts of the families, against the installed transformers."""

from __future__ import annotations

from dataclasses import fields

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from orchestrator.config.enums import Family
from orchestrator.planning.families import FAMILIES, SIZES
from tests.unit.models.tiny import tiny_spec

LEGACY = {"rope_theta", "rope_scaling", "rotary_pct", "rotary_emb_base", "partial_rotary_factor"}
"""Entries of older config.json files that transformers still reads but no longer declares."""
HEAD_DIM_READ = {Family.qwen2, Family.phi3}
"""Families whose attention takes a head_dim from the config without declaring it."""


@pytest.mark.parametrize("family", Family)
def test_every_entry_named_in_the_facts_is_one_hugging_face_declares(family: Family) -> None:
    facts = FAMILIES[family]
    declared = {field.name for field in fields(AutoConfig.for_model(family.value))} | {"model_type"}
    declared |= {field.name for field in fields(PreTrainedConfig)}
    extras = set(facts.extra_keys) - LEGACY
    sizes = {key for name, key in facts.size_keys.items() if not (name == "head_dim" and family in HEAD_DIM_READ)}
    assert extras | sizes | set(facts.dropout_keys) <= declared


@pytest.mark.parametrize("family", Family)
def test_defaults_are_hugging_faces(family: Family) -> None:
    facts = FAMILIES[family]
    config = AutoConfig.for_model(family.value)
    assert config.tie_word_embeddings is facts.tie_word_embeddings
    assert getattr(config, facts.activation_key) == facts.activation
    assert config.initializer_range == 0.02
    for name, default in facts.optional_sizes.items():
        if default is not None:
            assert getattr(config, facts.size_keys[name]) == default
    for setting in (facts.query_key_value_bias, facts.attention_output_bias, facts.mlp_bias, facts.parallel_residual):
        if setting.key is not None:
            assert getattr(config, setting.key) is setting.default
    if facts.score_softcap_key is not None:
        assert getattr(config, facts.score_softcap_key) == facts.score_softcap
    assert config.pad_token_id == facts.pad_token_id
    if facts.sliding_window is not None:
        sliding = AutoConfig.for_model(family.value, use_sliding_window=True)
        assert sliding.sliding_window == facts.sliding_window
        assert getattr(sliding, "max_window_layers", 0) == facts.first_sliding_layer


@pytest.mark.parametrize("family", Family)
def test_modules_are_what_the_facts_say(family: Family) -> None:
    facts = FAMILIES[family]
    spec = tiny_spec(family.value, pad_token_id=1)
    config = AutoConfig.for_model(**spec.hf_config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=spec.attention_implementation.value)
    embedding = model.get_input_embeddings()
    layer = (model.base_model.h if family is Family.gpt2 else model.base_model.layers)[0]
    names = {name for name, _ in layer.named_parameters()}
    norms = [module for module in layer.children() if "Norm" in type(module).__name__]
    assert (embedding.padding_idx == 1) is facts.padded_embedding
    assert len(norms) == facts.norms_per_layer
    assert all((norm.weight == (0 if facts.norm_weight_is_offset else 1)).all() for norm in norms)
    assert any("gate_up" in name for name in names) is facts.fused_gate_up
    assert any(part in name for name in names for part in ("c_attn", "qkv", "query_key_value")) is facts.fused_query_key_value
    assert any("k_norm" in name for name in names) is facts.query_key_norm
    assert type(model)._supports_sdpa is facts.sdpa


def test_every_family_of_the_schema_has_facts() -> None:
    assert set(FAMILIES) == set(Family)
    assert all(set(facts.size_keys) | set(facts.optional_sizes) == set(SIZES) for facts in FAMILIES.values())
