"""Bytes and seconds of collectives."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.planning.cost.collectives import Collective, Link, bytes_sent_per_rank, collective_seconds

MIB = 2**20
LINK = Link(bandwidth_bytes_per_second=100e9, latency_seconds=5e-6)
RANKS = st.integers(1, 512)
SIZES = st.integers(0, 2**34)


def sent(collective, size_bytes, num_ranks):
    return bytes_sent_per_rank(collective, size_bytes=size_bytes, num_ranks=num_ranks)


def seconds(collective, size_bytes, num_ranks, link=LINK):
    return collective_seconds(collective, size_bytes=size_bytes, num_ranks=num_ranks, link=link)


@pytest.mark.parametrize(
    ("collective", "by_ranks"),
    [
        (Collective.all_reduce, {2: 1, 4: 1.5, 8: 1.75}),
        (Collective.all_gather, {2: 0.5, 4: 0.75, 8: 0.875}),
        (Collective.reduce_scatter, {2: 0.5, 4: 0.75, 8: 0.875}),
        (Collective.all_to_all, {2: 0.5, 4: 0.75, 8: 0.875}),
        (Collective.broadcast, {2: 1, 4: 1, 8: 1}),
        (Collective.point_to_point, {2: 1}),
    ],
)
def test_bytes_each_rank_sends_of_a_mebibyte(collective, by_ranks):
    assert {num_ranks: sent(collective, MIB, num_ranks) / MIB for num_ranks in by_ranks} == by_ranks


@given(SIZES, RANKS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size_bytes, num_ranks):
    parts = (Collective.reduce_scatter, Collective.all_gather)
    assert sent(Collective.all_reduce, size_bytes, num_ranks) == pytest.approx(
        sum(sent(part, size_bytes, num_ranks) for part in parts)
    )
    assert seconds(Collective.all_reduce, size_bytes, num_ranks) == pytest.approx(
        sum(seconds(part, size_bytes, num_ranks) for part in parts)
    )


@pytest.mark.parametrize("collective", list(Collective))
def test_one_rank_has_nobody_to_talk_to(collective):
    assert sent(collective, MIB, 1) == 0
    assert seconds(collective, MIB, 1) == 0


@pytest.mark.parametrize("collective", list(Collective))
@given(size_bytes=SIZES, num_ranks=st.integers(2, 64))
def test_time_is_at_least_that_of_the_bytes_and_of_a_message(collective, size_bytes, num_ranks):
    num_ranks = 2 if collective is Collective.point_to_point else num_ranks
    transfer = sent(collective, size_bytes, num_ranks) / LINK.bandwidth_bytes_per_second
    # A relative slack for rounding.
    assert seconds(collective, size_bytes, num_ranks) * (1 + 1e-9) >= transfer + LINK.latency_seconds


def test_eight_ranks_reduce_small_tensors_at_the_latency_and_large_ones_at_the_bandwidth():
    assert seconds(Collective.all_reduce, 8, 8) == pytest.approx(14 * 5e-6, rel=1e-3)
    assert seconds(Collective.all_reduce, 8e9, 8) == pytest.approx(1.75 * 8e9 / 100e9, rel=1e-3)


@given(st.integers(2, 64), st.integers(0, 2**30), st.integers(1, 5000))
@example(3, 1_805_000, 2)
def test_a_broadcast_is_cut_into_the_pieces_that_make_it_fastest(num_ranks, size_bytes, pieces):
    this_many = (pieces + num_ranks - 2) * LINK.message_seconds(size_bytes / pieces)
    assert seconds(Collective.broadcast, size_bytes, num_ranks) <= this_many * (1 + 1e-9)


def test_without_latency_a_broadcast_takes_the_time_of_its_bytes():
    link = Link(bandwidth_bytes_per_second=1e9, latency_seconds=0)
    assert seconds(Collective.broadcast, 1e9, 8, link) == 1
