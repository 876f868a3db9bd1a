"""``metrics.jsonl``: one JSON object a line, on disk as soon as it is logged. All other records are made from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from orchestrator.tracking.tracker import RunDescription


class MetricsReader:
    """Reads the entries of a file that is still written, as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The entries since the last time. A line without its end is not there yet; a damaged one is left out."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and "kind" in entry and "step" in entry:
                    yield entry


class JsonlTracker:
    """Appends entries to a file. The summary of a run is its ``result.json``, so none is kept here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def start(self, description: RunDescription) -> None:  # noqa: ARG002
        """Create the file."""
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, entry: Mapping[str, Any]) -> None:
        """Write one line. A number that is not finite becomes null: JSON has no word for it."""
        assert self._file is not None, "start comes first"
        values = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in entry.items()}
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def checkpoint(self, path: Path, step: int) -> None:
        """Nothing: the catalogue of checkpoints is their folder."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Nothing: see the class."""

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002
        """Close the file."""
        if self._file is not None:
            self._file.close()
