"""The tables of sweeps."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from orchestrator.report.sweep import sweep_report, varied
from orchestrator.sweep_point import PointStatus, SweepPoint


def point(number: int, words: tuple[str, ...], status: PointStatus, **further: object) -> SweepPoint:
    return SweepPoint(number=number, overrides=words, config_hash=str(number), status=status, started=0.0, **further)  # type: ignore[arg-type]


def test_only_what_varies_is_shown_and_a_reason_once() -> None:
    points = {
        Path("0"): point(0, ("seed=1", "zero=stage1"), PointStatus.finished, metric=0.25, metric_name="loss"),
        Path("1"): point(1, ("seed=1", "zero=stage2"), PointStatus.infeasible, reason="too large"),
        Path("2"): point(2, ("seed=1", "zero=stage3"), PointStatus.infeasible, reason="too large"),
    }
    console = Console(width=120, record=True, file=io.StringIO())
    for part in sweep_report(Path("/sweeps/a"), points, points[Path("0")], "minimize"):
        console.print(part)
    lines = console.export_text().splitlines()
    assert not any("seed" in line for line in lines)
    assert "1, 2: infeasible: too large" in lines
    assert "1 finished, 2 infeasible; /sweeps/a" in lines
    assert "best (minimize loss): point 0 with 0.25: zero=stage1" in lines


def test_an_option_that_some_points_lack_varies() -> None:
    assert varied([("a=1", "b=2", "command=launch"), ("a=1",)]) == ["b"]
