"""Predicted against measured, at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.units import format_bytes, format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOfRanks:
    """Equal ranks, and the peak of the one that took most memory."""

    stage: int
    ranks: tuple[int, ...]
    predicted_bytes: int | None
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """A step: what was predicted (``unknown`` says why nothing was), and the median of the steady steps if there were any."""

    predicted: float | None
    measured: float | None
    unknown: str | None

    @property
    def error(self) -> float | None:
        """Measured over predicted, less 1."""
        return None if self.predicted is None or self.measured is None else self.measured / self.predicted - 1


def receipt_report(classes: Sequence[ClassOfRanks], step: StepSeconds, offer: str | None) -> list[RenderableType]:
    """The receipt; ``offer`` is the command that calibrates, where the step was too far off."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("receipt", "predicted", "measured", "difference"):
        table.add_column(column, overflow="fold")
    for entry in classes:
        predicted = entry.predicted_bytes
        table.add_row(
            f"memory of {_ranks(entry)}",
            "-" if predicted is None else format_bytes(predicted),
            format_bytes(entry.measured_bytes),
            "-" if not predicted else f"{entry.measured_bytes / predicted - 1:+.1%}",
        )
    table.add_row(
        "step, all ranks together",
        _duration(step.predicted),
        _duration(step.measured),
        "-" if step.error is None else f"{step.error:+.1%}",
    )
    return [table, *(Text(line) for line in _remarks(step, offer))]


def _remarks(step: StepSeconds, offer: str | None) -> list[str]:
    if step.predicted is None:
        return [f"no time of a step was predicted: {step.unknown}"] if step.unknown else []
    if offer is None or step.error is None:
        return []
    more = "longer" if step.error > 0 else "less"
    return [f"the steps took {abs(step.error):.0%} {more} than predicted; to fit the cluster's speeds to this run: {offer}"]


def _ranks(entry: ClassOfRanks) -> str:
    first, last = entry.ranks[0], entry.ranks[-1]
    named = f"rank {first}" if first == last else f"ranks {first}-{last}"
    return f"{named} (stage {entry.stage})"


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)
