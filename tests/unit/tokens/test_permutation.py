"""The order of the training data."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.tokens.permutation import permute


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 64, 65, 1000, 4097])
def test_every_number_comes_exactly_once(size):
    permuted = permute(np.arange(size), size=size, key=(1, 2))
    assert sorted(permuted) == list(range(size))


def test_a_position_does_not_depend_on_what_else_is_asked():
    whole = permute(np.arange(1000), size=1000, key=(7,))
    assert permute(np.array([[999, 0], [17, 17]]), size=1000, key=(7,)).tolist() == [
        [whole[999], whole[0]],
        [whole[17], whole[17]],
    ]


def test_keys_give_unrelated_orders():
    size = 10_000
    one, other = (permute(np.arange(size), size=size, key=(0, epoch)) for epoch in (0, 1))
    assert np.mean(one == other) < 0.01
    # Neighbours are torn apart: a shuffled order has a third of the range between two neighbours on average.
    assert np.mean(np.abs(np.diff(one))) == pytest.approx(size / 3, rel=0.05)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_a_range_beyond_32_bits_is_permuted_without_being_built():
    size = 10**13
    permuted = permute(np.arange(1000), size=size, key=(3,))
    assert len(set(permuted.tolist())) == 1000
    assert permuted.min() >= 0
    assert permuted.max() < size
    assert permuted.max() > size // 2
