"""Looking values up in tables gives what computing them for every row gives."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.planning.tables import CHUNK, chunks, groups, looked_up, tabulate


def columns(largest: int, count: int = 500) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 3, count), random.integers(1, 9, count), random.integers(0, largest, count)]


@pytest.mark.parametrize("largest", [4, 100_000], ids=["few combinations", "a range too wide to list"])
def test_rows_find_their_values_and_nothing_is_computed_twice(largest: int) -> None:
    first, second, third = columns(largest)
    seen: list[tuple[int, int, int]] = []

    def function(value: int, others: list[np.ndarray]) -> list[object]:
        seen.extend((value, int(one), int(other)) for one, other in zip(*others, strict=True))
        return [100 * value + others[0] * others[1], 7, value]

    places, (product, constant, by_first) = tabulate([first, second, third], function)
    assert np.array_equal(looked_up(product, places), 100 * first + second * third)
    assert looked_up(constant, places) == 7
    assert np.array_equal(looked_up(by_first, places), first)
    assert sorted(seen) == sorted(set(zip(first.tolist(), second.tolist(), third.tolist(), strict=True)))


@pytest.mark.parametrize("largest", [4, 100_000])
def test_groups_hold_each_row_once_with_its_combination(largest: int) -> None:
    given = columns(largest)
    found = list(groups(given))
    assert sorted(np.concatenate([rows for rows, _ in found])) == list(range(500))
    for rows, combination in found:
        assert [set(column[rows]) for column in given] == [{value} for value in combination]


def test_no_rows_are_no_groups() -> None:
    assert list(groups([np.array([], dtype=np.int64)])) == []


def test_chunks_cover_the_rows() -> None:
    assert [row for chunk in chunks(2 * CHUNK + 1) for row in range(2 * CHUNK + 1)[chunk]] == list(range(2 * CHUNK + 1))
