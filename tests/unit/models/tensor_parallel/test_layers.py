"""The layers of a group of one, and what they say of themselves."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orchestrator.models.tensor_parallel.group import ALONE, TensorParallelGroup
from orchestrator.models.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

MAKERS = [
    partial(ColumnParallelLinear, 4, 6, bias=True, group=ALONE),
    partial(RowParallelLinear, 4, 6, bias=True, group=ALONE),
    partial(VocabParallelEmbedding, 6, 4, 0, group=ALONE),
]


def saved_bytes(module: nn.Module, x: torch.Tensor) -> list[int]:
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return saved


def copied_weights(module: nn.Module, original: nn.Module) -> nn.Module:
    module.load_state_dict(original.state_dict())
    return module


@pytest.mark.parametrize("layer", [ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_one_rank_is_torchs(layer, bias):
    dense = nn.Linear(5, 7, bias=bias)
    ours = copied_weights(layer(5, 7, bias=bias, group=ALONE), dense)
    x = torch.randn(2, 3, 5, requires_grad=True)
    upstream = torch.randn(2, 3, 7)
    assert torch.equal(ours(x), dense(x))
    for mine, theirs in zip(
        torch.autograd.grad(ours(x), [x, *ours.parameters()], upstream),
        torch.autograd.grad(dense(x), [x, *dense.parameters()], upstream),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    assert saved_bytes(ours, x) == saved_bytes(dense, x)


def test_an_embedding_of_one_rank_is_torchs():
    dense = nn.Embedding(9, 5)
    ours = copied_weights(VocabParallelEmbedding(9, 5, 0, group=ALONE), dense)
    ids = torch.tensor([[0, 8, 3], [3, 3, 1]])
    upstream = torch.randn(2, 3, 5)
    assert torch.equal(ours(ids), F.embedding(ids, dense.weight))
    mine = torch.autograd.grad(ours(ids), ours.weight, upstream)
    assert torch.equal(mine[0], torch.autograd.grad(dense(ids), dense.weight, upstream)[0])
    assert saved_bytes(ours, ids) == saved_bytes(dense, ids)


@pytest.mark.parametrize("make", MAKERS)
def test_making_a_layer_draws_no_random_numbers(make):
    before = torch.get_rng_state()
    make()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("make", MAKERS)
def test_a_layer_is_made_on_the_current_device_in_the_current_type(make):
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            parameters = list(make().parameters())
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in parameters)
    assert all(parameter.is_contiguous() for parameter in parameters)


def test_a_printed_layer_shows_its_share():
    group = TensorParallelGroup(rank=1, size=2)
    assert repr(ColumnParallelLinear(4, 6, bias=False, group=group)) == (
        "ColumnParallelLinear(in_features=4, out_features_local=6, bias=False, ranks=2)"
    )
    assert repr(RowParallelLinear(4, 6, bias=True, group=group)) == (
        "RowParallelLinear(in_features_local=4, out_features=6, bias=True, ranks=2)"
    )
    assert repr(VocabParallelEmbedding(6, 4, 6, group=group)) == (
        "VocabParallelEmbedding(rows_local=6, hidden_size=4, first_row=6, ranks=2)"
    )
