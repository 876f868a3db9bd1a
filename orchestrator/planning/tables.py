"""Functions of few values over many rows: computed once for each combination of values that occurs, and looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from orchestrator.planning.parameters import Size

CHUNK = 8192
"""Rows at a time: their arrays stay in the cache."""


def chunks(count: int) -> Iterator[slice]:
    """The rows in pieces of ``CHUNK``."""
    for first in range(0, count, CHUNK):
        yield slice(first, min(first + CHUNK, count))


def groups(columns: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    """Rows of each combination of values that occurs in ``columns`` of integers from 0, and the combination."""
    keys, sizes = _keys(columns)
    # Numpy sorts 16-bit integers by their digits, in linear time.
    order = np.argsort(keys.astype(np.uint16) if math.prod(sizes) <= 2**16 else keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, starts) if len(order) else ():
        yield rows, tuple(int(value) for value in np.unravel_index(keys[rows[0]], sizes))


def tabulate(
    columns: Sequence[np.ndarray], function: Callable[[int, Sequence[np.ndarray]], Sequence[Size]]
) -> tuple[np.ndarray, list[Size]]:
    """Where to look up each row, and the tables: the results of ``function``.

    It is called once for each value of the first column, with the others as arrays of the combinations that occur beside it.
    A table is a number where the function gave the same number every time.
    """
    keys, sizes = _keys(columns)
    if math.prod(sizes) <= 4 * len(keys) + CHUNK:
        occurs = np.zeros(math.prod(sizes), dtype=bool)
        occurs[keys] = True
        found = np.flatnonzero(occurs)
        places = np.cumsum(occurs)[keys] - 1
    else:
        found, places = np.unique(keys, return_inverse=True)
    first, *others = np.unravel_index(found, sizes)
    starts = [0, *(np.flatnonzero(np.diff(first)) + 1), len(first)]
    results = []
    for start, stop in pairwise(starts):
        called = function(int(first[start]), [column[start:stop] for column in others])
        results.append([(value, stop - start) for value in called])
    return places, [_joined(pieces) for pieces in zip(*results, strict=True)]


def looked_up(table: Size, places: np.ndarray) -> Size:
    """A table's values for rows."""
    return table[places] if isinstance(table, np.ndarray) else table


def _keys(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[int, ...]]:
    sizes = tuple(int(column.max(initial=0)) + 1 for column in columns)
    keys = columns[0]
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        keys = keys * size + column
    return keys, sizes


def _joined(pieces: Sequence[tuple[Size, int]]) -> Size:
    value, _ = pieces[0]
    if not isinstance(value, np.ndarray) and all(type(other) is type(value) and other == value for other, _ in pieces):
        return value
    return np.concatenate([np.broadcast_to(value, length) for value, length in pieces])
