"""``metrics.csv``: one row an entry, of all attempts of a run.

A column that is new makes the file anew, with the column empty in earlier rows: readers see the old file or the new one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from orchestrator.run_dir import write_text
from orchestrator.tracking.tracker import RunDescription

FIRST_COLUMNS = ("attempt", "kind", "step", "time")


class CsvTracker:
    """Appends rows to ``run_dir/metrics.csv``. A step that a later attempt did again has a row of each attempt."""

    def __init__(self) -> None:
        self._path = Path()
        self._attempt = 0
        self._columns: list[str] = list(FIRST_COLUMNS)
        self._file: TextIO | None = None

    def start(self, description: RunDescription) -> None:
        """Open the file, or go on with it."""
        self._path, self._attempt = description.run_dir / "metrics.csv", description.attempt
        rows = _complete_rows(self._path)
        self._columns = rows[0] if rows else list(FIRST_COLUMNS)
        self._rewrite(rows[1:])

    def log(self, entry: Mapping[str, Any]) -> None:
        """Write one row."""
        new = [key for key in entry if key not in self._columns]
        if new:
            self._close()
            rows = _complete_rows(self._path)[1:]
            self._columns += new
            self._rewrite([[*row, *("" for _ in new)] for row in rows])
        assert self._file is not None, "start comes first"
        values = {**entry, "attempt": self._attempt}
        csv.writer(self._file, lineterminator="\n").writerow([values.get(column, "") for column in self._columns])
        self._file.flush()

    def checkpoint(self, path: Path, step: int) -> None:
        """Nothing: a checkpoint is no metric."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Nothing: ``result.json`` has it."""

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002
        """Close the file."""
        self._close()

    def _rewrite(self, rows: Sequence[Sequence[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self._columns, *rows])
        write_text(self._path, text.getvalue())
        self._file = self._path.open("a", encoding="utf-8", newline="")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _complete_rows(path: Path) -> list[list[str]]:
    """The rows of a file that may have been left in the middle of one."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
