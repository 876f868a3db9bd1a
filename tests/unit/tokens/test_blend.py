"""Mixtures: the shares that were asked for, evenly spread, and computed from the position alone."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.tokens.blend import Blend, blend_of

WEIGHTS = [(1.0,), (0.7, 0.3), (0.7, 0.2, 0.1), (1, 1, 1), (8, 1, 0.5, 0.25), (0.123456789, 3.14159265), (1e-6, 1)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_beginning_of_the_order_has_the_shares(weights):
    blend = blend_of(weights)
    positions = np.arange(20_000)
    sources, _ = blend.places(positions)
    for number, weight in enumerate(weights):
        so_far = np.cumsum(sources == number)
        wanted = (positions + 1) * weight / sum(weights)
        assert np.abs(so_far - wanted).max() <= len(weights)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_each_source_is_read_one_after_the_other(weights):
    blend = blend_of(weights)
    sources, earlier = blend.places(np.arange(5000))
    for number in range(len(weights)):
        assert earlier[sources == number].tolist() == list(range(int(np.sum(sources == number))))
    assert blend.counts(5000) == [int(np.sum(sources == number)) for number in range(len(weights))]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_far_positions_cost_no_more_and_count_the_same(weights):
    blend = blend_of(weights)
    first = 10**12
    sources, earlier = blend.places(first + np.arange(1000))
    before = blend.counts(first)
    assert sum(before) == first
    for number in range(len(weights)):
        of_source = earlier[sources == number]
        assert of_source.tolist() == list(range(before[number], before[number] + len(of_source)))


def test_decimal_weights_are_exact_after_a_round():
    blend = blend_of((0.7, 0.2, 0.1))
    assert blend == Blend(parts=(7, 2, 1))
    assert blend.counts(10) == [7, 2, 1]
    assert blend.counts(10**12) == [7 * 10**11, 2 * 10**11, 10**11]
    assert blend.share(0) == 0.7


def test_sources_alternate_rather_than_come_in_blocks():
    sources, _ = blend_of((0.5, 0.5)).places(np.arange(100))
    assert set(np.diff(sources).tolist()) == {-1, 1}
