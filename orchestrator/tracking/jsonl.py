"""``metrics.jsonl``: one JSON object a line, on disk as soon as it is logged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from orchestrator.tracking.tracker import RunDescription


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

    def summary(self, values: Mapping[str, Any]) -> None:
        """Nothing: see the class."""

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002
        """Close the file."""
        if self._file is not None:
            self._file.close()
