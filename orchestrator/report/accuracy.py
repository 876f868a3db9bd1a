"""How far the memory estimate is from what others measured: the one place where its error is written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAccuracy:
    """Error of the peak of a device over published runs. Errors are shares of the measured size."""

    runs: int
    median_error: float
    ninetieth_percentile_error: float

    def sentence(self) -> str:
        """As a report says it."""
        return (
            f"half of {self.runs} published runs lie within {self.median_error:.0%} of it, "
            f"nine of ten within {self.ninetieth_percentile_error:.0%}"
        )


PUBLISHED_RUNS = EstimateAccuracy(runs=160, median_error=0.03, ninetieth_percentile_error=0.08)
"""The readings of GPUs that ``tests/benchmarks/memory_accuracy.py`` predicts, each without its own source."""


def estimate_note(accuracy: EstimateAccuracy = PUBLISHED_RUNS) -> str:
    """What a reader of the sizes should know of them."""
    return f"the sizes are an estimate; {accuracy.sentence()}"
