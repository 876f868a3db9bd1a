"""Runs and sweeps side by side, for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.config.enums import Direction
from orchestrator.results.options import MISSING, value_of
from orchestrator.results.row import Row, Status
from orchestrator.results.table import ResultsTable
from orchestrator.units import format_bytes, format_count, format_duration, format_seconds

_STYLES = {
    Status.finished: "green",
    Status.running: "bold green",
    Status.infeasible: "yellow",
    Status.interrupted: "yellow",
    Status.stopped: "yellow",
    Status.failed: "bold red",
    Status.hung: "bold red",
    Status.dead: "bold red",
}
_BEST = "* "
_NAMES = 6
"""Runs that a reason names."""
_HEADER_WIDTH = 14

Cell = Callable[[Row], str]


def results_report(table: ResultsTable) -> list[RenderableType]:
    """The table, without the columns that no row has anything in; what it counts, the best, and why runs did not end well."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run", overflow="fold")
    shown.add_column("status", no_wrap=True)
    columns = [(header, [cell(row) for row in table.rows]) for header, cell in [*_option_cells(table), *_measured_cells(table)]]
    columns = [(header, values) for header, values in columns if any(value != "-" for value in values)]
    for header, _ in columns:
        shown.add_column(header, overflow="fold")
    for position, row in enumerate(table.rows):
        style = "bold" if row.path in table.best else ""
        status = Text(row.status.value, style=_STYLES.get(row.status, ""))
        shown.add_row(row.name, status, *(Text(values[position], style=style) for _, values in columns))
    return [shown, _counts(table), *_best(table), *_reasons(table)]


def _option_cells(table: ResultsTable) -> list[tuple[str, Cell]]:
    def cell(option: str) -> Cell:
        return lambda row: option_text(value_of(row, option))

    return [(_broken(option), cell(option)) for option in table.options]


def _measured_cells(table: ResultsTable) -> list[tuple[str, Cell]]:
    metric_name = table.metric_name
    return [
        (_broken(metric_name or "metric"), lambda row: _metric(row, metric_name, is_best=row.path in table.best)),
        ("steps", _steps),
        ("tokens/s", lambda row: _text(row.tokens_per_second, format_count)),
        ("MFU", lambda row: _text(row.mfu, lambda share: f"{share:.1%}")),
        ("step /\npredicted", lambda row: _against(row.step_seconds, row.predicted_step_seconds, format_duration)),
        ("memory /\npredicted", lambda row: _against(row.memory_bytes, row.predicted_memory_bytes, format_bytes)),
        ("duration", lambda row: _text(row.duration_seconds, format_seconds)),
    ]


def _metric(row: Row, usual_name: str | None, *, is_best: bool) -> str:
    if row.metric is None:
        return "-"
    name = "" if row.metric_name == usual_name else f" {row.metric_name}"
    return f"{_BEST if is_best else ''}{row.metric:.5g}{name}"


def _steps(row: Row) -> str:
    if row.step is None:
        return "-"
    return f"{row.step}" if row.max_steps in (None, row.step) else f"{row.step} of {row.max_steps}"


def _against(measured: float | None, predicted: float | None, write: Callable[[float], str]) -> str:
    """``9.12 / 8.40 GiB``."""
    if predicted is None:
        return _text(measured, write)
    first, second = _text(measured, write), write(predicted)
    number, _, unit = first.partition(" ")
    return f"{number if second.endswith(f' {unit}') else first} / {second}"


def _counts(table: ResultsTable) -> Text:
    counted = ", ".join(f"{count} {status}" for status, count in table.counts.items())
    return Text(f"{len(table.rows)} {'run' if len(table.rows) == 1 else 'runs'}: {counted}")


def _best(table: ResultsTable) -> Iterator[Text]:
    for row in table.rows:
        if row.path in table.best:
            words = " ".join(f"{option}={option_text(value_of(row, option))}" for option in table.options)
            place = "largest" if row.direction is Direction.maximize else "least"
            yield Text(f"{_BEST}{place} {row.metric_name}: {row.name}{f' ({words})' if words else ''}")


def _reasons(table: ResultsTable) -> Iterator[Text]:
    """Equal reasons are said once."""
    groups: dict[tuple[Status, str], list[str]] = {}
    for row in table.rows:
        if row.reason is not None:
            groups.setdefault((row.status, " ".join(row.reason.split())), []).append(row.name)
    for (status, reason), names in groups.items():
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield Text.assemble((status.value, _STYLES.get(status, "")), f"  {', '.join(names[:_NAMES])}{more}: {reason}")


def option_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is MISSING:
        return "-"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"[{','.join(map(option_text, value))}]" if isinstance(value, list) else str(value)


def _text(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)


def _broken(path: str) -> str:
    """A long path on several lines, broken behind a dot or an underscore."""
    lines = [""]
    for part in re.findall(r"[^._]*[._]?", path):
        if lines[-1] and len(lines[-1] + part) > _HEADER_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
