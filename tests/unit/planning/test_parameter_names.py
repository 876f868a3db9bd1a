"""The list of parameters is that of Hugging Face's model."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.config.enums import AttentionImplementation, Family
from orchestrator.planning.families import FAMILIES
from orchestrator.planning.model_spec import model_spec_from_config, model_spec_from_hf
from orchestrator.planning.parameter_names import frozen_parameters, named_parameters, trainable_shares
from tests.reference_model import named_parameters as checkpoint_parameters
from tests.unit.planning.configurations import run_config

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def spec_of(family, **entries):
    keys = FAMILIES[family].size_keys
    sizes = {keys[name]: size for name, size in SIZES.items() if name in keys}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    hf_config = {"model_type": family.value, **sizes, **tokens, **entries}
    return model_spec_from_hf(hf_config, name=family.value, attention_implementation=AttentionImplementation.eager, dropout=0.0)


def in_hugging_face(spec):
    values = dict(spec.hf_config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {name: tuple(parameter.shape) for name, parameter in checkpoint_parameters(model)}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", Family)
def test_names_and_shapes_are_hugging_faces(family, tied):
    spec = spec_of(family, tie_word_embeddings=tied)
    ours = named_parameters(spec)
    assert {parameter.name: parameter.shape for parameter in ours} == in_hugging_face(spec)
    assert sum(parameter.size for parameter in ours) == spec.num_parameters


@pytest.mark.parametrize(
    ("family", "key"), [(Family.llama, "attention_bias"), (Family.llama, "mlp_bias"), (Family.qwen3, "attention_bias")]
)
def test_biases_follow_the_config(family, key):
    spec = spec_of(family, **{key: True})
    ours = {parameter.name: parameter.shape for parameter in named_parameters(spec)}
    assert ours == in_hugging_face(spec)
    assert any(name.endswith(".bias") for name in ours)


@pytest.mark.parametrize("family", Family)
def test_each_parameter_lies_in_the_layer_of_its_block(family):
    spec = spec_of(family)
    first = 2 if FAMILIES[family].learned_positions else 1
    for parameter in named_parameters(spec):
        block = re.search(r"\.(?:layers|h)\.(\d+)\.", parameter.name)
        if block is not None:
            assert parameter.layer == first + int(block[1])
        else:
            assert parameter.layer in (0, 1, first + 3, first + 4)


def test_shares_count_elements():
    spec = model_spec_from_config(run_config().model)
    shares = trainable_shares(spec, [r"embed_tokens", r"layers\.0\.", r"layers\.1\.mlp"])
    assert shares[:2] == (0.0, 0.0)
    assert shares[2] == pytest.approx(1 - 3 * 1024 * 2816 / spec.layer_parameters)
    assert set(shares[3:]) == {1.0}
    assert len(shares) == 19


def test_a_tied_head_is_frozen_with_the_embedding():
    spec = spec_of(Family.llama, tie_word_embeddings=True)
    assert frozen_parameters(spec, ["embed"]) == {"model.embed_tokens.weight"}
    shares = trainable_shares(spec, ["embed"])
    assert (shares[0], shares[-2], shares[-1]) == (0.0, 1.0, 0.0)
