"""Cutting a tensor over the ranks and putting it together again loses nothing and never cuts a head."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.models.shards import Block, HfParameter, Split

blocks = st.lists(st.builds(Block, units=st.integers(1, 12), unit_size=st.integers(1, 4)), min_size=1, max_size=3)


@given(blocks=blocks, size=st.sampled_from([1, 2, 3, 4, 8]), transposed=st.booleans(), dim=st.integers(0, 1))
def test_the_parts_of_all_ranks_are_the_whole(blocks, size, transposed, dim):
    shape = [3, 3]
    shape[dim] = sum(block.units * block.unit_size for block in blocks)
    hf = HfParameter(name="w", shape=tuple(shape), split=Split(dim=dim, blocks=tuple(blocks)), transposed=transposed)
    full = torch.rand(shape)
    found = torch.full(shape, torch.nan)
    for rank in range(size):
        part = hf.cut(full, rank=rank, size=size)
        assert part.is_contiguous()
        if len(blocks) == 1:
            assert tuple(part.shape) == hf.local_shape(size)
            hf.put(part, found, rank=rank, size=size)
    if len(blocks) == 1:
        assert torch.equal(found, full)


def test_a_packed_matrix_is_cut_part_by_part():
    split = Split(dim=0, blocks=(Block(units=4, unit_size=2), Block(units=2, unit_size=2)))
    assert split.pieces(0, 2) == [(0, 4), (8, 2)]
    assert split.pieces(1, 2) == [(4, 4), (10, 2)]


def test_fewer_heads_than_ranks_are_shared_by_neighbours():
    split = Split(dim=0, blocks=(Block(units=2, unit_size=8),))
    assert [split.pieces(rank, 4) for rank in range(4)] == [[(0, 8)], [(0, 8)], [(8, 8)], [(8, 8)]]
    assert split.sharers(4) == 2
    assert split.sharers(2) == 1


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_vocabulary_that_does_not_divide_is_filled_up_with_zeros(size):
    hf = HfParameter(name="w", shape=(10, 2), split=Split(dim=0, blocks=(Block(units=10),)))
    full = torch.rand(10, 2) + 1
    parts = [hf.cut(full, rank=rank, size=size) for rank in range(size)]
    assert {tuple(part.shape) for part in parts} == {(-(-10 // size), 2)}
    assert sum(int((part == 0).sum()) for part in parts) == 2 * (size * -(-10 // size) - 10)
