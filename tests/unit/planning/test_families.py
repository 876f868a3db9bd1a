"""The facts of the families, against the installed transformers."""

from __future__ import annotations

from dataclasses import fields

import pytest
from transformers import AutoConfig, PreTrainedConfig

from orchestrator.config.schema import Family
from orchestrator.planning.families import FAMILIES, SIZES

LEGACY = {"rope_theta", "rope_scaling", "rotary_pct", "rotary_emb_base"}
"""Entries of older config.json files that transformers still reads but no longer declares."""


@pytest.mark.parametrize("family", Family)
def test_every_entry_named_in_the_facts_is_one_hugging_face_declares(family: Family) -> None:
    facts = FAMILIES[family]
    declared = {field.name for field in fields(AutoConfig.for_model(family.value))} | {"model_type"}
    declared |= {field.name for field in fields(PreTrainedConfig)}
    extras = set(facts.extra_keys) - LEGACY
    sizes = {key for name, key in facts.size_keys.items() if not (name == "head_dim" and family is Family.qwen2)}
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
    if facts.sliding_window is not None:
        sliding = AutoConfig.for_model(family.value, use_sliding_window=True)
        assert sliding.sliding_window == facts.sliding_window
        assert getattr(sliding, "max_window_layers", 0) == facts.first_sliding_layer


def test_every_family_of_the_schema_has_facts() -> None:
    assert set(FAMILIES) == set(Family)
    assert all(set(facts.size_keys) | set(facts.optional_sizes) == set(SIZES) for facts in FAMILIES.values())
