"""Judges the memory estimate on published readings: ``python -m tests.benchmarks.memory_accuracy FILE [--json]``.

FILE has the columns of ``tests/data/memory_published.csv``. Every scored row is predicted with constants that were fitted
without its source; only one constant is fitted at all, the allocator's fragmentation, on the reserved and device readings of
the other sources. Errors are shares of the reading, and of an interval its middle counts. A row that cannot be predicted is
wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config.schema import PlannerConfig
from orchestrator.planning.memory.levels import OVERHEADS, Levels, Overheads
from tests.benchmarks.published_prediction import Prediction, predict
from tests.benchmarks.published_rows import DECISION_KINDS, NUMERIC_KINDS, Row, read_rows

GIB = 2**30
READINGS = ("peak_reserved", "device_used")
MARGIN = PlannerConfig().memory_margin
FEWEST_ROWS = 5
"""Readings that a fit needs; with fewer the default stands."""
MOST_FRAGMENTATION = 0.12
FULL = 0.97
"""Share of its memory from which a device counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A row, and what became of it."""

    row: Row
    prediction: Prediction | None
    problem: str
    """Why there is no prediction."""
    levels: Levels | None

    @property
    def error(self) -> float | None:
        """Signed share of the reading by which the prediction is off."""
        predicted, measured = self.predicted_gib, self.row.measured_gib
        return None if predicted is None or not measured else predicted / measured - 1

    @property
    def predicted_gib(self) -> float | None:
        """The number that is compared with the reading."""
        interval = self.interval_gib
        return None if interval is None else sum(interval) / 2

    @property
    def interval_gib(self) -> tuple[float, float] | None:
        """Where the reading is expected."""
        if self.levels is None or self.prediction is None:
            return None
        if self.row.kind == "host_used":
            host = self.prediction.host_gib
            return None if host is None else (host * 0.85, host * 1.15)
        if self.row.kind == "steady_allocated":
            steady = self.prediction.start_bytes / GIB
            return steady * (1 - OVERHEADS.allocated_spread), steady * (1 + OVERHEADS.allocated_spread)
        interval = {
            "peak_reserved": self.levels.reserved_interval,
            "device_used": self.levels.device_interval,
        }.get(self.row.kind, self.levels.allocated_interval)
        return interval.low / GIB, interval.high / GIB

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the reading, or all of the range of a reading whose unit is in doubt."""
        interval, measured, ends = self.interval_gib, self.row.measured_gib, self.row.range_gib
        if interval is None or measured is None:
            return False
        holds = interval[0] <= measured <= interval[1]
        return holds or (ends is not None and interval[0] <= ends[0] and ends[1] <= interval[1])

    @property
    def decision(self) -> str:
        """``refused``, ``flagged`` or ``accepted``, by what the run needs of the device."""
        capacity = self.row.capacity_gib
        if self.levels is None or capacity is None:
            return "unknown"
        needed = self.levels.device_bytes / GIB
        return "refused" if needed > capacity else "flagged" if needed > capacity * (1 - MARGIN) else "accepted"


def judge(rows: Sequence[Row]) -> list[Outcome]:
    """Every scored row, predicted without its own source."""
    predicted = {id(row): predict(row) for row in rows if row.is_scored}
    groups = sorted({row.group for row in rows if row.is_scored})
    fitted = {group: fit([row for row in rows if row.is_scored and row.group != group], predicted) for group in groups}
    outcomes = []
    for row in rows:
        if not row.is_scored:
            continue
        found = predicted[id(row)]
        levels = found.levels(fitted[row.group]) if isinstance(found, Prediction) else None
        outcomes.append(
            Outcome(
                row=row,
                prediction=found if isinstance(found, Prediction) else None,
                problem=found if isinstance(found, str) else "",
                levels=levels,
            )
        )
    return outcomes


def fit(rows: Iterable[Row], predicted: Mapping[int, Prediction | str]) -> Overheads:
    """The fragmentation that makes the median reading right.

    Of what lies outside the allocator nothing is fitted. A reading of a full device says nothing of fragmentation.
    """
    shares = []
    for row in rows:
        found, measured = predicted[id(row)], row.measured_gib
        if row.kind not in READINGS or measured is None or not isinstance(found, Prediction):
            continue
        if row.capacity_gib is not None and measured > FULL * row.capacity_gib:
            continue
        outside = found.outside_bytes if row.kind == "device_used" else 0
        shares.append((measured * GIB - outside) / found.cached_bytes - 1)
    if len(shares) < FEWEST_ROWS:
        return OVERHEADS
    return replace(OVERHEADS, fragmentation=min(MOST_FRAGMENTATION, max(0.0, statistics.median(shares))))


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures, by source and kind, and the decisions."""
    sources: dict[str, dict[str, Any]] = {}
    kinds = (*NUMERIC_KINDS, *sorted({o.row.kind for o in outcomes} - {*NUMERIC_KINDS, *DECISION_KINDS}))
    for group in sorted({outcome.row.group for outcome in outcomes}):
        for kind in kinds:
            chosen = [o for o in outcomes if o.row.group == group and o.row.kind == kind and o.row.measured_gib]
            if chosen:
                sources.setdefault(group, {})[kind] = statistics_of(chosen)
    decisions = {kind: [o.decision for o in outcomes if o.row.kind == kind] for kind in DECISION_KINDS}
    return {
        "sources": sources,
        "decisions": {
            "fits": {
                "rows": len(decisions["fits"]),
                "refused": sum(decision in ("refused", "unknown") for decision in decisions["fits"]),
                "flagged": decisions["fits"].count("flagged"),
            },
            "oom": {
                "rows": len(decisions["oom"]),
                "accepted": sum(decision in ("accepted", "unknown") for decision in decisions["oom"]),
            },
        },
    }


def statistics_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Errors and intervals of the rows of one kind; a row without a prediction is off by all of its reading."""
    signed = [-1.0 if outcome.error is None else outcome.error for outcome in outcomes]
    sizes = sorted(abs(error) for error in signed)
    intervals = [outcome.interval_gib for outcome in outcomes]
    widths = [2 * (high - low) / (high + low) for low, high in (i for i in intervals if i is not None) if high + low > 0]
    return {
        "rows": len(outcomes),
        "predicted": sum(outcome.error is not None for outcome in outcomes),
        "median": statistics.median(sizes),
        "p90": percentile(sizes, 0.9),
        "max": sizes[-1],
        "bias": statistics.fmean(signed),
        "inside": sum(outcome.is_inside for outcome in outcomes) / len(outcomes),
        "width": statistics.median(widths) if widths else None,
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the values do not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def printed(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> str:
    """The table of ``summary``, every row that is off by much, and the rows that do not count."""
    result = summary(outcomes)
    lines = [
        f"{'source':8}{'kind':18}{'rows':>5}{'pred.':>6}{'median':>8}{'p90':>8}{'max':>8}{'bias':>8}{'inside':>8}{'width':>8}"
    ]
    for group, kinds in result["sources"].items():
        for kind, figures in kinds.items():
            width = "" if figures["width"] is None else f"{figures['width']:8.1%}"
            lines.append(
                f"{group:8}{kind:18}{figures['rows']:5}{figures['predicted']:6}{figures['median']:8.1%}{figures['p90']:8.1%}"
                f"{figures['max']:8.1%}{figures['bias']:+8.1%}{figures['inside']:8.0%}{width}"
            )
    fits, oom = result["decisions"]["fits"], result["decisions"]["oom"]
    lines.append(
        f"fits: {fits['rows']} rows, {fits['refused']} refused, {fits['flagged']} flagged inside the margin of {MARGIN:.0%}"
    )
    lines.append(f"oom: {oom['rows']} rows, {oom['accepted']} accepted")
    lines += [f"not predicted: {outcome.row.id}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    lines += [f"excluded: {row.id}: {row.text('row_reason') or 'no reason given'}" for row in rows if not row.is_scored]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or with ``--json`` one object."""
    parser = argparse.ArgumentParser(description="Judge the memory estimate on published readings.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--rows", action="store_true", help="print every row with its prediction")
    asked = parser.parse_args(arguments)
    rows = read_rows(asked.file)
    outcomes = judge(rows)
    if asked.json:
        sys.stdout.write(json.dumps(summary(outcomes)) + "\n")
        return
    if asked.rows:
        sys.stdout.writelines(_line(outcome) + "\n" for outcome in outcomes)
    sys.stdout.write(printed(rows, outcomes) + "\n")


def _line(outcome: Outcome) -> str:
    interval = outcome.interval_gib
    low, high = interval or (float("nan"), float("nan"))
    measured = outcome.row.text("measured_gib") or "-"
    error = "" if outcome.error is None else f"{outcome.error:+.1%}"
    inside = "" if not outcome.row.measured_gib else "in" if outcome.is_inside else "OUT"
    row, expected = outcome.row, f"[{low:8.2f}, {high:8.2f}]"
    return f"{row.id:10}{row.kind:16}{measured:>9} {expected} {error:>7} {inside:4}{outcome.decision}"


if __name__ == "__main__":
    main()
