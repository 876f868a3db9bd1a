"""The ratio of two things measured in turn, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """The median of ratios, and the 95 % interval of that median."""

    median: float
    lower: float
    upper: float

    @property
    def width(self) -> float:
        """Length of the interval."""
        return self.upper - self.lower

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.lower:.3f}, {self.upper:.3f}]"


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> RatioInterval:
    """The median over the pairs of numerator / denominator, with a percentile bootstrap interval (Efron, 1979).

    A pair is measured back to back, so whatever slows the machine for longer than a pair slows both and drops out.
    """
    ratios = np.array(numerators) / np.array(denominators)
    drawn = np.random.default_rng(0).choice(ratios, size=(RESAMPLES, len(ratios)))
    lower, upper = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return RatioInterval(median=float(np.median(ratios)), lower=float(lower), upper=float(upper))
