"""What ``calibrate`` found, as tables: the runs, the constants, and where the preset is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.planning.calibration.constants import Constant
from orchestrator.planning.calibration.fit import Calibration, FittedConstant, MeasuredStep
from orchestrator.units import format_count, format_duration


def calibration_report(runs: Sequence[MeasuredStep], calibration: Calibration, *, is_guess: bool) -> list[RenderableType]:
    """Every run with its prediction before and after, every constant, and what the runs could not tell."""
    return [
        _runs_table(runs, calibration, is_guess=is_guess),
        Text(_errors_line(runs, calibration)),
        _constants_table(calibration, is_guess=is_guess),
        *_open_constants(calibration),
    ]


def measurement_report(rows: Sequence[tuple[str, str, str]]) -> list[RenderableType]:
    """The measured figures: what, of which size, and the figure."""
    table = _table("measured", "size", "figure")
    for row in rows:
        table.add_row(*row)
    return [table]


def preset_report(path: Path, usage: str) -> list[RenderableType]:
    """Where the preset is and how to use it."""
    return [Text(f"written: {path}"), Text(f"use it:  orchestrator validate {usage}")]


def _runs_table(runs: Sequence[MeasuredStep], calibration: Calibration, *, is_guess: bool) -> Table:
    table = _table("run", "measured", "predicted before", "after", "error before", "after")
    for run, before, after in zip(runs, calibration.predicted_before, calibration.predicted_after, strict=True):
        table.add_row(
            run.name,
            format_duration(run.seconds),
            "-" if is_guess else format_duration(before),
            format_duration(after),
            "-" if is_guess else f"{before / run.seconds - 1:+.1%}",
            f"{after / run.seconds - 1:+.1%}",
        )
    return table


def _errors_line(runs: Sequence[MeasuredStep], calibration: Calibration) -> str:
    errors = [abs(after / run.seconds - 1) for run, after in zip(runs, calibration.predicted_after, strict=True)]
    return f"after the fit the median error is {median(errors):.1%}, the worst {max(errors):.1%} (of the runs it was made from)"


def _constants_table(calibration: Calibration, *, is_guess: bool) -> Table:
    table = _table("constant", "before", "after", "decided by", "what it is")
    for fitted in calibration.constants:
        before = "-" if is_guess else _value(fitted.constant, fitted.before)
        after = _value(fitted.constant, fitted.after) if fitted.is_used else "as before"
        table.add_row(fitted.constant.name.replace("_", " "), before, after, _decided_by(fitted), fitted.constant.meaning)
    return table


def _decided_by(fitted: FittedConstant) -> str:
    if not fitted.is_used:
        return "not used by these runs"
    whose = "the runs" if fitted.is_determined else "what was known before"
    return f"{whose} ({fitted.knowledge:.0%} from the runs)"


def _open_constants(calibration: Calibration) -> Iterator[RenderableType]:
    """What the runs could not determine."""
    weak = [
        fitted.constant.name.replace("_", " ")
        for fitted in calibration.constants
        if fitted.is_used and not fitted.is_determined
    ]
    unused = [fitted.constant.name.replace("_", " ") for fitted in calibration.constants if not fitted.is_used]
    if weak:
        yield Text(f"these runs say little of: {', '.join(weak)}; runs in which it weighs more would")
    if unused:
        yield Text(f"these runs say nothing of: {', '.join(unused)}; it stays as it was")


def _value(constant: Constant, value: float) -> str:
    field = constant.fields[0]
    if field.endswith("_seconds"):
        return f"{1e6 * value:.3g} us" if value < 1e-3 else format_duration(value)
    return f"{format_count(value)}/s" if field.endswith("_per_second") else f"{value:.3g}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
