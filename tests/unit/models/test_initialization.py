"""Initial weights depend on the seed and the names alone: not on the dtype, the depth or the cut."""

from __future__ import annotations

import math

import pytest
import torch

from orchestrator.models.causal_lm import CausalLM
from orchestrator.models.initialization import seeded_weights
from orchestrator.models.layers import LayerShapes, Placement
from orchestrator.models.recompute import Recompute
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from tests.reference_model import named_hf_parameters
from tests.unit.models.alone import model_alone
from tests.unit.models.tiny import TINY, tiny_spec


def weights(model_type, *, seed=1, dtype=torch.float32, **entries) -> dict[str, torch.Tensor]:
    spec = tiny_spec(model_type, **entries)
    return {hf.name: parameter.detach() for hf, parameter in named_hf_parameters(model_alone(spec, seed=seed, dtype=dtype))}


@pytest.mark.parametrize("model_type", TINY)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(model_type):
    first, again, other = weights(model_type), weights(model_type), weights(model_type, seed=2)
    assert first.keys() == again.keys()
    for name, weight in first.items():
        assert torch.equal(weight, again[name]), name
        assert torch.equal(weight, other[name]) is (weight.dim() == 1), name


@pytest.mark.parametrize("model_type", TINY)
def test_another_dtype_gives_the_same_weights_rounded(model_type):
    low = weights(model_type, dtype=torch.bfloat16)
    for name, weight in weights(model_type).items():
        assert torch.equal(weight.to(torch.bfloat16), low[name]), name


def test_a_deeper_model_begins_with_the_layers_of_the_shallow_one():
    deep = weights("llama", num_hidden_layers=3)
    for name, weight in weights("llama").items():
        assert torch.equal(weight, deep[name]), name


def test_no_two_matrices_are_alike():
    matrices = [weight for weight in weights("llama").values() if weight.shape == (32, 32)]
    assert len(matrices) == 4
    assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == 4


@pytest.mark.parametrize("model_type", TINY)
def test_norms_scale_by_one_biases_are_zero_and_matrices_have_the_stated_deviation(model_type):
    for name, weight in weights(model_type, initializer_range=0.05).items():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif weight.dim() == 1:
            # Gemma's norms add one to their weight.
            assert (weight == (0 if model_type == "gemma2" else 1)).all(), name
        else:
            residual = name.endswith(("c_proj.weight", "attention.dense.weight", "dense_4h_to_h.weight"))
            expected = 0.05 / math.sqrt(2 * 2) if residual else 0.05
            assert weight.std().item() == pytest.approx(expected, rel=0.12), name
            assert abs(weight.mean().item()) < 0.2 * expected, name


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("model_type", TINY)
def test_the_ranks_of_a_tensor_parallel_group_hold_the_parts_of_one_model(model_type, size):
    spec = tiny_spec(model_type, vocab_size=126)
    whole = {hf.name: torch.full(hf.shape, torch.nan) for hf, _ in named_hf_parameters(model_alone(spec))}
    for rank in range(size):
        group = TensorParallelGroup(rank=rank, size=size)
        fill = seeded_weights(spec, group, seed=1)
        placement = Placement(dtype=torch.float32, device=torch.device("cpu"), fill=fill)
        model = CausalLM(LayerShapes(spec=spec, group=group), placement, Recompute(), None)
        for hf, parameter in named_hf_parameters(model):
            assert tuple(parameter.shape) == hf.local_shape(size), hf.name
            hf.put(parameter.detach(), whole[hf.name], rank=rank, size=size)
    for hf, parameter in named_hf_parameters(model_alone(spec)):
        assert torch.equal(whole[hf.name], parameter.t() if hf.transposed else parameter), hf.name
