"""TensorBoard event files in ``run_dir/tensorboard``: scalars against the step, one curve over all attempts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.tracking.tracker import RunDescription
from orchestrator.tracking.values import measurements

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Writes event files; needs the package ``tensorboard``, not torch."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._resumed = False

    def start(self, description: RunDescription) -> None:
        """Open an event file of this attempt beside those of the earlier ones."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._resumed = description.attempt > 1
        self._writer = EventFileWriter(str(description.run_dir / FOLDER), flush_secs=10)

    def log(self, entry: Mapping[str, Any]) -> None:
        """Write the numbers of an entry. The first of a later attempt takes the place of what was written past its step."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        when, step = entry.get("time", time.time()), entry["step"]
        if self._resumed:
            self._resumed = False
            self._writer.add_event(Event(wall_time=when, step=step, file_version="brain.Event:2"))
            self._writer.add_event(Event(wall_time=when, step=step, session_log=SessionLog(status=SessionLog.START)))
        values = [Summary.Value(tag=name, simple_value=number) for name, number in measurements(entry).items()]
        self._writer.add_event(Event(wall_time=when, step=step, summary=Summary(value=values)))

    def checkpoint(self, path: Path, step: int) -> None:
        """Nothing: event files hold scalars."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Nothing: ``result.json`` has it."""

    def finish(self, *, failed: bool) -> None:  # noqa: ARG002
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
