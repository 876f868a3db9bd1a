"""A ring all-reduce sends what the cost model says, and so does gloo's."""

from __future__ import annotations

from math import prod

import pytest

from orchestrator.planning.cost.collectives import Collective, bytes_sent_per_rank
from tests.distributed.ranks import run_ranks

WORLD_SIZES = (2, 4, 8)


def modelled(size_bytes, world_size):
    return bytes_sent_per_rank(Collective.all_reduce, size_bytes=size_bytes, num_ranks=world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_ring_gives_the_sum_and_sends_the_modelled_bytes(world_size, tmp_path):
    ranks = run_ranks("tests.distributed.ring_traffic:reduced_tensors", world_size=world_size, directory=tmp_path)
    for of_ranks in zip(*ranks, strict=True):
        tensor = of_ranks[0]
        assert all(reduced.equal for reduced in of_ranks), tensor
        elements = prod(tensor.shape)
        model = modelled(elements * tensor.element_size, world_size)
        sent = [reduced.sent for reduced in of_ranks]
        assert sum(sent) == world_size * model, tensor
        if elements % world_size == 0:
            assert sent == [model] * world_size, tensor
        else:
            assert max(abs(count - model) for count in sent) < 2 * tensor.element_size, tensor


def test_a_group_reduces_among_itself(tmp_path):
    function = "tests.distributed.ring_traffic:sums_in_a_group"
    sums = run_ranks(function, [1, 3], world_size=4, directory=tmp_path)
    assert sums == [[1.0] * 5, [1010.0] * 5, [100.0] * 5, [1010.0] * 5]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_modelled_bytes_leave_the_sockets(world_size, tmp_path, report):
    ranks = run_ranks("tests.distributed.ring_traffic:traffic", world_size=world_size, directory=tmp_path)
    if any(rank.ring is None for rank in ranks):
        # Linux counts since 4.19; without, the sockets say nothing for or against the count of our own that other tests check.
        report(f"ring all-reduce over {world_size} ranks: this kernel does not count what a socket has sent")
        return
    model = modelled(ranks[0].size_bytes, world_size)
    ring, gloo = ([getattr(rank, name) / model for rank in ranks] for name in ("ring", "gloo"))
    report(
        f"all-reduce of {ranks[0].size_bytes} bytes, {world_size} ranks, bytes sent per rank: model {model:.0f}, "
        f"counted {ranks[0].counted}, on the sockets {min(ring):.4f} to {max(ring):.4f} of the model; "
        f"gloo's own {min(gloo):.4f} to {max(gloo):.4f}"
    )
    assert [rank.counted for rank in ranks] == [model] * world_size
    assert ring == pytest.approx([1] * world_size, rel=0.01)
    assert gloo == pytest.approx([1] * world_size, rel=0.01)
