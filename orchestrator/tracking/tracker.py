"""What a tracker is, what it is told of a run, and several as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What a tracker is told of a run before its first entry: plain JSON values, nothing secret."""

    run_name: str
    run_dir: Path
    attempt: int
    attempt_dir: Path
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    ds_config: Mapping[str, Any]
    sweep: str | None = None
    """The sweep of which this run is a point; None if it stands alone."""
    overrides: Sequence[str] = ()
    """What the point of a sweep sets."""
    earlier: Sequence[Path] = ()
    """The metrics files of earlier attempts that W&B has."""


class Tracker(Protocol):
    """Records a run. An entry is a flat mapping with a ``kind`` and a ``step``."""

    def start(self, description: RunDescription) -> None:
        """Open the record."""

    def log(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; ``step`` never decreases within an attempt."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Say that the checkpoint of a step lies complete at ``path``."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Record the values that stand for the whole run."""

    def finish(self, *, failed: bool) -> None:
        """Close the record."""


@dataclass(frozen=True, slots=True)
class CompositeTracker:
    """Several trackers that hear the same."""

    trackers: Sequence[Tracker]

    def start(self, description: RunDescription) -> None:
        """Open every record."""
        for tracker in self.trackers:
            tracker.start(description)

    def log(self, entry: Mapping[str, Any]) -> None:
        """Add an entry to every record."""
        for tracker in self.trackers:
            tracker.log(entry)

    def checkpoint(self, path: Path, step: int) -> None:
        """Tell every record."""
        for tracker in self.trackers:
            tracker.checkpoint(path, step)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Tell every record."""
        for tracker in self.trackers:
            tracker.summary(values)

    def finish(self, *, failed: bool) -> None:
        """Close every record."""
        for tracker in self.trackers:
            tracker.finish(failed=failed)
