"""The mappings where there is nobody to talk to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orchestrator.models.tensor_parallel import mappings
from orchestrator.models.tensor_parallel.group import TensorParallelGroup

MAPPINGS = [
    mappings.copy_to_region,
    mappings.reduce_from_region,
    mappings.gather_sequence,
    mappings.reduce_scatter_sequence,
    mappings.enter_region,
    mappings.leave_region,
]


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_one_rank_keeps_the_tensor_it_has(mapping, sequence_parallel):
    x = torch.randn(2, 3, 4, requires_grad=True)
    assert mapping(x, TensorParallelGroup(sequence_parallel=sequence_parallel)) is x


def test_a_gradient_is_left_alone_without_a_group():
    parameter = nn.Parameter(torch.ones(3))
    mappings.sum_gradient(parameter, None)
    parameter.sum().backward()
    assert torch.equal(parameter.grad, torch.ones(3))


def test_a_sequence_that_the_ranks_cannot_share_is_an_error():
    with pytest.raises(AssertionError, match="2 ranks cannot share a sequence of 3"):
        mappings.reduce_scatter_sequence(torch.randn(1, 3, 4), TensorParallelGroup(size=2))
