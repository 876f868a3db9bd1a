"""Rows as a table: its columns, their order, the best of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.enums import Direction
from orchestrator.results.find import natural
from orchestrator.results.options import MISSING, value_of, varying_options
from orchestrator.results.row import Row, Status

METRIC = "metric"
_BEFORE = ("run", "status")
_AFTER = (
    METRIC,
    "step",
    "tokens_per_second",
    "mfu",
    "step_seconds",
    "predicted_step_seconds",
    "memory_bytes",
    "predicted_memory_bytes",
    "duration_seconds",
    "reason",
)
"""Columns that every table has, before and after those of what varies."""


class UnknownColumnError(ValueError):
    """There is no such column; the text is its name, ``known`` are those there are."""

    def __init__(self, column: str, known: Sequence[str]) -> None:
        super().__init__(column)
        self.known = tuple(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTable:
    """Rows in the order in which they are shown."""

    rows: tuple[Row, ...]
    options: tuple[str, ...]
    """What varies."""
    best: frozenset[Path]
    """The best finished run of each objective that several have, by their directories."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What it can be sorted by."""
        return columns_of(self.options)

    @property
    def metric_name(self) -> str | None:
        """The metric of most rows; None if no row has one."""
        named = Counter(row.metric_name for row in self.rows if row.metric_name is not None)
        return named.most_common(1)[0][0] if named else None

    @property
    def counts(self) -> Mapping[Status, int]:
        """How many rows there are of each status, in the order of the statuses."""
        counted = Counter(row.status for row in self.rows)
        return {status: counted[status] for status in Status if counted[status]}

    def entry(self, row: Row) -> dict[str, Any]:
        """A row by its columns, with plain values; None where there is none."""
        values = {column: _value(row, column) for column in self.columns}
        return {column: None if value is MISSING else value for column, value in values.items()}

    def entries(self) -> list[dict[str, Any]]:
        """The table as ``output=json`` gives it: each row by its columns, and what they leave out."""
        return [
            {
                **self.entry(row),
                "path": str(row.path),
                "sweep": None if row.sweep_dir is None else str(row.sweep_dir),
                "number": row.number,
                "overrides": list(row.overrides),
                "metric_name": row.metric_name,
                "direction": row.direction,
                "best": row.path in self.best,
                "max_steps": row.max_steps,
            }
            for row in self.rows
        ]


def table_of(rows: Sequence[Row], *, sort: str | None, descending: bool) -> ResultsTable:
    """A table sorted by the column ``sort``, values that are missing last; None: the objective, best first.

    Raises:
        UnknownColumnError: there is no such column.
    """
    options = varying_options(rows)
    named = sorted(rows, key=lambda row: natural(row.name))
    if sort is None and not descending:
        ordered = _best_first(named)
    else:
        ordered = _by_column(named, METRIC if sort is None else _column(sort, options, rows), descending)
    return ResultsTable(rows=tuple(ordered), options=tuple(options), best=frozenset(row.path for row in _best(rows)))


def columns_of(options: Sequence[str]) -> tuple[str, ...]:
    """All columns of a table in which ``options`` vary."""
    return (*_BEFORE, *options, *_AFTER)


def _column(asked: str, options: Sequence[str], rows: Sequence[Row]) -> str:
    """The column that is meant: by its name, the name of the metric, or the end of an option's path."""
    columns = columns_of(options)
    if asked in columns:
        return asked
    if any(row.metric_name == asked for row in rows):
        return METRIC
    ending = [option for option in options if option.endswith(f".{asked}")]
    if len(ending) != 1:
        raise UnknownColumnError(asked, columns)
    return ending[0]


def _value(row: Row, column: str) -> Any:
    if column == "run":
        return row.name
    return getattr(row, column) if column in (*_BEFORE, *_AFTER) else value_of(row, column)


def _by_column(rows: Sequence[Row], column: str, descending: bool) -> list[Row]:
    known = [row for row in rows if not _is_missing(_value(row, column))]
    unknown = [row for row in rows if _is_missing(_value(row, column))]
    return [*sorted(known, key=lambda row: _order(_value(row, column)), reverse=descending), *unknown]


def _is_missing(value: Any) -> bool:
    return value is None or value is MISSING


def _order(value: Any) -> tuple[int, float, list[tuple[int, int, str]]]:
    """Numbers before texts."""
    if isinstance(value, int | float):
        return (0, float(value), [])
    return (1, 0.0, natural(str(value)))


def _best_first(rows: Sequence[Row]) -> list[Row]:
    """By the objective, each by itself if there are several; runs that have not ended well after those that have."""
    known = [row for row in rows if row.metric is not None]
    unknown = [row for row in rows if row.metric is None]
    return [*sorted(known, key=lambda row: (not row.is_finished, str(row.metric_name), _badness(row))), *unknown]


def _best(rows: Sequence[Row]) -> Iterator[Row]:
    groups: dict[tuple[str | None, Direction], list[Row]] = {}
    for row in rows:
        if row.is_finished and row.metric is not None:
            groups.setdefault((row.metric_name, row.direction), []).append(row)
    for group in groups.values():
        if len(group) > 1:
            yield min(group, key=_badness)


def _badness(row: Row) -> float:
    assert row.metric is not None
    return -row.metric if row.direction is Direction.maximize else row.metric
