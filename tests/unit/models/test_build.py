"""The built model computes what Hugging Face's own does, and costs no initialization."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.config.schema import AttentionImplementation, RecomputePolicy
from orchestrator.models.build import build_model, enable_recompute
from orchestrator.models.initialization import initialize_parameters
from tests.unit.models.tiny import TINY, tiny_spec


@pytest.mark.parametrize("model_type", TINY)
def test_build_and_initialize_gives_finite_logits_near_a_uniform_guess(model_type: str) -> None:
    spec = tiny_spec(model_type)
    model = build_model(spec, dtype=torch.float32)
    initialize_parameters(model, spec, seed=1)
    tokens = torch.randint(0, spec.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert loss.item() == pytest.approx(torch.log(torch.tensor(float(spec.vocab_size))).item(), rel=0.1)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("model_type", TINY)
def test_the_model_computes_what_hugging_faces_constructor_gives_with_the_same_weights(model_type: str) -> None:
    spec = tiny_spec(model_type)
    ours = build_model(spec, dtype=torch.float32)
    initialize_parameters(ours, spec, seed=1)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config), attn_implementation="eager").train()
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(0, spec.vocab_size, (2, 16))
    torch.testing.assert_close(ours(input_ids=tokens).logits, theirs(input_ids=tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("model_type", TINY)
def test_weights_are_tied_exactly_when_the_spec_says_so(model_type: str, tie: bool) -> None:
    spec = tiny_spec(model_type, tie_word_embeddings=tie)
    model = build_model(spec, dtype=torch.float32)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tie
    assert model.num_parameters() == spec.num_parameters


@pytest.mark.parametrize("model_type", [name for name in TINY if name != "gpt2"])
def test_rotary_frequencies_stay_fp32_in_a_bf16_model(model_type: str) -> None:
    spec = tiny_spec(model_type)
    rotary = [build_model(spec, dtype=dtype).base_model.rotary_emb for dtype in (torch.bfloat16, torch.float32)]
    assert rotary[0].inv_freq.dtype is torch.float32
    assert torch.equal(rotary[0].inv_freq, rotary[1].inv_freq)


def test_the_dtype_the_attention_and_the_device_are_the_ones_asked_for() -> None:
    spec = tiny_spec("llama", attention=AttentionImplementation.eager)
    with torch.device("meta"):
        model = build_model(spec, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model.config._attn_implementation == "eager"
    assert model.training


def test_dropout_reaches_every_dropout_of_the_model() -> None:
    model = build_model(tiny_spec("gpt2", dropout=0.25), dtype=torch.float32)
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.25}


def test_building_leaves_the_spec_alone_and_takes_no_random_numbers() -> None:
    spec = tiny_spec("gpt_neox", rope_parameters={"rope_theta": 1000.0})
    before = str(spec.hf_config)
    state = torch.get_rng_state()
    build_model(spec, dtype=torch.float32)
    assert str(spec.hf_config) == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("model_type", TINY)
def test_full_recomputation_gives_the_same_gradients(model_type: str) -> None:
    spec = tiny_spec(model_type)
    tokens = torch.randint(0, spec.vocab_size, (2, 16))

    def gradients(policy: RecomputePolicy) -> tuple[dict[str, torch.Tensor], Any]:
        model = build_model(spec, dtype=torch.float32)
        initialize_parameters(model, spec, seed=1)
        enable_recompute(model, policy)
        calls = []
        layer = (model.base_model.h if model_type == "gpt2" else model.base_model.layers)[0]
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
        model(input_ids=tokens, labels=tokens).loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}, len(calls)

    plain, plain_calls = gradients(RecomputePolicy.none)
    recomputed, recomputed_calls = gradients(RecomputePolicy.full)
    assert (plain_calls, recomputed_calls) == (1, 2)
    for name, gradient in plain.items():
        assert torch.equal(gradient, recomputed[name]), name
