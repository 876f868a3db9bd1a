"""From which source of a mixture each training sequence comes: computed from its position alone, without a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

FINEST = 2**30
"""Weights that have no smaller common denominator are rounded to this many parts; products with a position fit int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Sources in whole-numbered ``parts``. Among the first ``n`` positions source ``s`` has ``n * share(s)``, within a few.

    The first source takes its share of all positions, evenly spread; the second its share of those that are left, and so
    on. After ``sum(parts)`` positions every share is exact.
    """

    parts: tuple[int, ...]

    def share(self, source: int) -> float:
        """The part of all sequences that come from ``source``."""
        return self.parts[source] / sum(self.parts)

    def places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each of ``positions``, and how many earlier positions have the same one; shapes of ``positions``."""
        sources = np.full_like(positions, len(self.parts) - 1)
        earlier = np.empty_like(positions)
        left = np.ones(positions.shape, dtype=bool)
        among = positions.copy()
        for source, (part, whole) in enumerate(self._splits()):
            before = _taken(among, part, whole)
            takes = left & (_taken(among + 1, part, whole) > before)
            sources[takes], earlier[takes] = source, before[takes]
            left &= ~takes
            among = among - before
        assert not left.any()
        return sources, earlier

    def counts(self, positions: int) -> list[int]:
        """How many of the first ``positions`` positions have each source."""
        counts = []
        for part, whole in self._splits():
            counts.append(int(_taken(np.array([positions]), part, whole)[0]))
            positions -= counts[-1]
        return counts

    def _splits(self) -> list[tuple[int, int]]:
        """Of each source: its parts, and those of it and all later ones."""
        return [(part, sum(self.parts[source:])) for source, part in enumerate(self.parts)]


def blend_of(weights: Sequence[float]) -> Blend:
    """The blend of sources with ``weights``, all above 0. Decimal weights such as 0.7 and 0.3 are kept exactly."""
    exact = [Fraction(str(weight)) for weight in weights]
    denominator = lcm(*(weight.denominator for weight in exact))
    parts = [int(weight * denominator) for weight in exact]
    if sum(parts) > FINEST:
        parts = [max(1, round(part * FINEST / sum(parts))) for part in parts]
    divisor = gcd(*parts)
    return Blend(parts=tuple(part // divisor for part in parts))


def _taken(positions: NDArray[np.int64], part: int, whole: int) -> NDArray[np.int64]:
    """Of the first ``positions`` positions, those that go to ``part`` of ``whole`` parts: the nearest whole number."""
    rounds, rest = positions // whole, positions % whole
    return rounds * part + (rest * part + whole // 2) // whole
