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


PUBLISHED_RUNS: EstimateAccuracy | None = None
"""The estimate against published measurements; ``None`` until they have been compared."""


def estimate_note(accuracy: EstimateAccuracy | None = PUBLISHED_RUNS) -> str:
    """What a reader of the sizes should know of them."""
    known = "not compared with published runs yet" if accuracy is None else accuracy.sentence()
    return f"the sizes are an estimate; {known}"
