"""The model computes what Hugging Face's own does with the same weights, and is made without waste."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orchestrator.config.enums import AttentionImplementation
from orchestrator.models.families.registry import FAMILY_MODULES
from orchestrator.models.layers import LayerShapes
from orchestrator.models.tensor_parallel.group import ALONE
from orchestrator.planning.families import FAMILIES, Family
from orchestrator.planning.parameter_names import named_parameters as planned_parameters
from orchestrator.planning.partition import BLOCK_CLASSES
from tests.reference_model import named_hf_parameters, named_parameters, plain_model
from tests.unit.models.alone import model_alone
from tests.unit.models.tiny import TINY, tiny_spec

LENGTH = 24
KERNELS = (AttentionImplementation.eager, AttentionImplementation.sdpa)
WINDOWS = {"mistral": {"sliding_window": 8}, "phi3": {"sliding_window": 8}, "gemma2": {"sliding_window": 8}}


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("model_type", TINY)
def test_logits_and_gradients_are_hugging_faces(model_type, kernel, tie):
    if kernel is AttentionImplementation.sdpa and not FAMILIES[Family(model_type)].sdpa:
        return
    spec = tiny_spec(model_type, attention=kernel, tie_word_embeddings=tie, **WINDOWS.get(model_type, {}))
    ours, theirs = model_alone(spec), plain_model(spec, seed=1)
    tokens = torch.randint(1, spec.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    logits, expected = ours(tokens), theirs(input_ids=tokens).logits
    shapes = LayerShapes(spec=spec, group=ALONE)
    cap = shapes.family.logits_softcap(shapes.config)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    for some in (logits, expected):
        nn.functional.cross_entropy(some.flatten(0, 1), tokens.flatten()).backward()
    wanted = dict(named_parameters(theirs))
    found = {hf.name: (hf, parameter) for hf, parameter in named_hf_parameters(ours)}
    assert found.keys() == wanted.keys()
    for name, (hf, parameter) in found.items():
        gradient = hf.cut(wanted[name].grad, rank=0, size=1)
        torch.testing.assert_close(
            parameter.grad, gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("model_type", [name for name in TINY if FAMILIES[Family(name)].padded_embedding])
def test_the_padding_tokens_row_learns_nothing_from_being_read(model_type):
    spec = tiny_spec(model_type, pad_token_id=3, tie_word_embeddings=False)
    ours, theirs = model_alone(spec), plain_model(spec, seed=1)
    tokens = torch.tensor([[3, 5, 3, 7, 9, 3, 2, 1]])
    ours(tokens).square().sum().backward()
    theirs(input_ids=tokens).logits.square().sum().backward()
    gradients = {hf.name: parameter.grad for hf, parameter in named_hf_parameters(ours)}
    name = next(name for name in gradients if "embed" in name)
    assert not gradients[name][3].any()
    assert gradients[name][5].any()
    assert not dict(named_parameters(theirs))[name].grad[3].any()


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("model_type", TINY)
def test_the_model_has_the_parameters_that_the_plan_counts(model_type, tie):
    spec = tiny_spec(model_type, tie_word_embeddings=tie)
    model = model_alone(spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.num_parameters
    assert all(parameter.is_contiguous() for parameter in model.parameters())


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("model_type", TINY)
def test_the_model_and_the_plan_call_every_part_the_same(model_type, tie):
    spec = tiny_spec(model_type, tie_word_embeddings=tie)
    assert BLOCK_CLASSES[spec.family] == FAMILY_MODULES[spec.family].block.__name__
    found = {hf.name: hf.shape for hf, _ in named_hf_parameters(model_alone(spec))}
    assert found == {parameter.name: parameter.shape for parameter in planned_parameters(spec)}


@pytest.mark.parametrize("model_type", [name for name in TINY if name != "gpt2"])
def test_rotary_tables_of_a_bf16_model_are_computed_in_fp32(model_type):
    spec = tiny_spec(model_type)
    position = torch.arange(LENGTH)[None]
    exact = plain_model(spec, seed=1).base_model.rotary_emb(torch.zeros(1, LENGTH, 4), position)
    inputs = model_alone(spec, dtype=torch.bfloat16)._layers[1].inputs
    tables = inputs.of_block(0, torch.zeros(1, LENGTH, 4, dtype=torch.bfloat16), LENGTH)["position_embeddings"]
    for table, expected in zip(tables, exact, strict=True):
        assert torch.equal(table, expected.to(torch.bfloat16))


def test_dropout_reaches_every_place_that_hugging_face_drops_at():
    spec = tiny_spec("gpt2", dropout=0.25)
    model = model_alone(spec)
    rates = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.25}
    tokens = torch.randint(0, spec.vocab_size, (2, LENGTH))
    embedded = model._layers[1](model._layers[0](tokens))
    assert 0.15 < (embedded == 0).float().mean() < 0.35
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_making_a_model_leaves_the_spec_alone_and_takes_no_random_numbers():
    spec = tiny_spec("gpt_neox", rope_parameters={"rope_theta": 1000.0})
    before = str(spec.hf_config)
    state = torch.get_rng_state()
    model_alone(spec)
    assert str(spec.hf_config) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_the_attention_mask_and_the_rotary_tables_are_made_once():
    spec = tiny_spec("llama", attention=AttentionImplementation.eager)
    model = model_alone(spec)
    blocks = [layer for layer in model._layers if hasattr(layer, "inputs")]
    hidden = torch.zeros(1, LENGTH, spec.hidden_size)
    first, second = (block.inputs.of_block(block.index, hidden, LENGTH) for block in blocks)
    assert first["attention_mask"] is second["attention_mask"]
    assert first["position_embeddings"] is second["position_embeddings"]
