"""Sequences of whole documents: what is in one, what is cut, and that nothing is lost or read twice."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.tokens import windows as windows_module
from orchestrator.tokens.windows import PackedWindows, StreamWindows, packed_table

LENGTH = 8


def packed(sizes: list[int]) -> list[tuple[int, int]]:
    ends = np.cumsum(sizes, dtype=np.int64)
    return [tuple(window) for window in packed_table(ends, sequence_length=LENGTH).T.tolist()]


@pytest.mark.parametrize(
    ("sizes", "windows"),
    [
        ([], []),
        ([0, 0], []),
        ([9], [(0, 9)]),
        ([4, 5], [(0, 9)]),
        ([4, 6], [(0, 4), (4, 10)]),
        ([4, 0, 5, 1], [(0, 9), (9, 10)]),
        ([10], [(0, 9), (8, 10)]),
        ([2, 25], [(0, 2), (2, 11), (10, 19), (18, 27)]),
        ([2, 26, 7], [(0, 2), (2, 11), (10, 19), (18, 27), (26, 35)]),
        ([2, 26, 8], [(0, 2), (2, 11), (10, 19), (18, 27), (26, 28), (28, 36)]),
    ],
)
def test_documents_are_put_together_while_they_fit_and_cut_only_if_they_never_would(sizes, windows):
    assert packed(sizes) == windows


def by_hand(sizes: list[int]) -> list[tuple[int, int]]:
    """The same one document at a time."""
    windows: list[list[int]] = []
    begin = 0
    for size in sizes:
        end, start = begin + size, begin
        while start < end:
            stop = min(start + LENGTH + 1, end)
            if windows and windows[-1][1] == start and stop - windows[-1][0] <= LENGTH + 1:
                windows[-1][1] = stop
            else:
                windows.append([start, stop])
            if stop == end:
                break
            start = stop - 1
        begin = end
    return [(start, stop) for start, stop in windows]


@pytest.mark.parametrize("at_once", [1, 3, 64, 2**20])
@pytest.mark.parametrize("longest", [3, 12, 60])
def test_the_documents_may_be_read_in_parts(monkeypatch, at_once, longest):
    sizes = np.random.default_rng(longest).integers(0, longest, size=300).tolist()
    monkeypatch.setattr(windows_module, "DOCUMENTS_AT_ONCE", at_once)
    assert packed(sizes) == by_hand(sizes)


def test_every_token_but_the_first_of_a_cut_document_is_predicted_once():
    table = packed_table(np.array([100, 103, 150]), sequence_length=LENGTH)
    targets = [token for start, stop in table.T.tolist() for token in range(start + 1, stop)]
    assert len(targets) == len(set(targets)) == PackedWindows(table=table).num_targets
    assert set(range(1, 100)) <= set(targets)


@pytest.mark.parametrize(("num_tokens", "num_sequences"), [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2)])
def test_a_stream_is_cut_into_sequences_that_share_no_target(num_tokens, num_sequences):
    windows = StreamWindows(num_tokens=num_tokens, sequence_length=LENGTH)
    assert windows.num_sequences == num_sequences
    starts, stops = windows.bounds(np.arange(num_sequences))
    targets = [token for start, stop in zip(starts, stops, strict=True) for token in range(start + 1, stop)]
    assert targets == list(range(1, num_sequences * LENGTH + 1))
    assert windows.num_targets == len(targets)
