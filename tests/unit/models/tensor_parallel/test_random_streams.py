"""Streams of the ranks of a group, which need no communication and so can be looked at in one process."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from orchestrator.models.tensor_parallel.group import ALONE, TensorParallelGroup
from orchestrator.models.tensor_parallel.random_streams import RegionRandomness

CPU = torch.device("cpu")
GROUP = [TensorParallelGroup(rank=rank, size=4) for rank in range(4)]


def draws(group: TensorParallelGroup, *, active: bool = True, inside: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers drawn before, inside (``inside`` of them) and after a region."""
    torch.manual_seed(7)
    randomness = RegionRandomness(group)
    before = torch.rand(5)
    randomness.enter(CPU, active=active)
    in_region = torch.rand(inside)
    randomness.leave()
    return before, in_region, torch.rand(5)


def test_ranks_draw_different_numbers_inside_and_the_same_around():
    before, inside, after = (torch.stack(numbers) for numbers in zip(*map(draws, GROUP), strict=True))
    assert len(before.unique(dim=0)) == 1
    assert len(inside.unique(dim=0)) == 4
    assert len(after.unique(dim=0)) == 1


def test_what_is_drawn_afterwards_does_not_depend_on_how_much_was_drawn_inside():
    assert torch.equal(draws(GROUP[1], inside=1)[2], draws(GROUP[1], inside=1000)[2])


def test_two_regions_draw_different_numbers():
    torch.manual_seed(7)
    randomness = RegionRandomness(GROUP[0])
    numbers = []
    for _ in range(2):
        randomness.enter(CPU, active=True)
        numbers.append(torch.rand(5))
        randomness.leave()
    assert not torch.equal(*numbers)


def test_nothing_changes_without_dropout_or_for_one_rank():
    torch.manual_seed(7)
    plain = torch.rand(15)
    assert torch.equal(torch.cat(draws(GROUP[2], active=False)), plain)
    assert torch.equal(torch.cat(draws(ALONE)), plain)


def test_recomputation_drops_the_same_elements_even_when_it_ends_inside_the_region():
    randomness = RegionRandomness(GROUP[3])
    weight = torch.ones(64, requires_grad=True)

    def region(x: Tensor) -> Tensor:
        outer = F.dropout(x, 0.5)
        randomness.enter(CPU, active=True)
        inner = F.dropout(outer * weight, 0.5) * weight
        randomness.leave()
        return inner

    for _ in range(2):
        x = torch.ones(64, requires_grad=True)
        result = checkpoint(region, x, use_reentrant=False)
        state = torch.get_rng_state()
        result.sum().backward()
        assert 0 < result.count_nonzero() < 64
        assert torch.equal(x.grad, result)
        assert torch.equal(torch.get_rng_state(), state)
