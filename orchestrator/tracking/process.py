"""The recorder: a process beside rank 0 that copies ``metrics.jsonl`` to W&B, TensorBoard and csv as it grows.

``python -m orchestrator.tracking.process ATTEMPT_DIR`` is told on its standard input, a JSON object a line, of checkpoints
and of the end; the end of the input without a word is that of a rank that was killed. The file is the queue: whatever a
server does, the training only appends a line to it, and nothing is dropped. Each record has a thread of its own, so that
one that hangs keeps none of the others.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.run_dir import METRICS, read_json
from orchestrator.tracking.csv import CsvTracker
from orchestrator.tracking.description import describe, tracking_config
from orchestrator.tracking.jsonl import MetricsReader
from orchestrator.tracking.measured import prediction_and_measurement
from orchestrator.tracking.recorder import FAILED_SECONDS, OUTPUT, SECONDARY, TEMPORARY, longest_seconds
from orchestrator.tracking.tracker import RunDescription, Tracker
from orchestrator.tracking.wandb import WandbTracker

PREFIX = "[orchestrator] "
_POLL_SECONDS = 0.5
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""They ask the training to stop, which then tells the recorder."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the training ended, and the values that stand for it."""

    failed: bool
    summary: Mapping[str, Any]


class Recording:
    """One record, which follows the metrics file in a thread of its own. Its failure is said once, and ends it alone."""

    def __init__(self, name: str, tracker: Tracker, description: RunDescription, say: Say) -> None:
        self._name, self._tracker, self._description, self._say = name, tracker, description, say
        self._reader = MetricsReader(description.attempt_dir / METRICS)
        self._checkpoints: list[tuple[Path, int]] = []
        self._changed = threading.Event()
        self._end: End | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def checkpoint(self, path: Path, step: int) -> None:
        """Hand on a checkpoint."""
        self._checkpoints.append((path, step))

    def close(self, end: End) -> None:
        """Close the record after the last entry; ``join`` waits for it."""
        self._end = end
        self._changed.set()

    def join(self, seconds: float) -> None:
        """Wait until the record is closed or has failed, or ``seconds`` are over."""
        self._thread.join(max(0.0, seconds))

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it goes on: it is closed, or has failed."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._tracker.start(self._description)
            while self._end is None:
                self._copy()
                self._changed.wait(_POLL_SECONDS)
            self._copy()
            self._tracker.summary(self._end.summary)
            self._tracker.finish(failed=self._end.failed)
        except (Exception, SystemExit) as problem:
            line = (str(problem).splitlines() or [""])[0]
            self._say(f"{self._name} records no more ({type(problem).__name__}: {line}); metrics.jsonl has everything")

    def _copy(self) -> None:
        for entry in self._reader.new():
            self._tracker.log(entry)
        while self._checkpoints:
            self._tracker.checkpoint(*self._checkpoints.pop(0))


def record(attempt_dir: Path, orders: TextIO, say: Say, *, primary: bool) -> bool:
    """Record an attempt until ``orders`` tell of its end. Returns whether every record could be closed in time."""
    description = describe(attempt_dir)
    tracking = tracking_config(description.config)
    recordings = [
        Recording(name, tracker, description, say) for name, tracker in _trackers(attempt_dir, tracking, say, primary)
    ]
    end = None
    for order in _orders(orders):
        if "checkpoint" in order:
            for recording in recordings:
                recording.checkpoint(Path(order["checkpoint"]), order["step"])
        else:
            end = End(failed=order["failed"], summary=order["summary"])
    seconds = FAILED_SECONDS if end is None else longest_seconds(tracking)
    end = end or End(failed=True, summary={})
    measured = prediction_and_measurement(
        description.plan,
        MetricsReader(attempt_dir / METRICS).new(),
        log_every=description.config["training"]["log_every"],
    )
    for recording in recordings:
        recording.close(End(failed=end.failed, summary={**measured, **end.summary}))
    deadline = time.monotonic() + seconds
    for recording in recordings:
        recording.join(deadline - time.monotonic())
    return all(recording.is_closed for recording in recordings)


def main() -> None:
    """Record until the training ends. What W&B or TensorBoard print goes to a file: their threads know no other way."""
    attempt_dir = Path(sys.argv[1])
    primary = SECONDARY not in sys.argv[2:]
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    own = os.dup(1)
    name = OUTPUT if primary else f"recorder_{os.uname().nodename}.log"
    output = os.open(attempt_dir / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)

    def say(text: str) -> None:
        if not primary:
            return
        # who listened may have gone
        with suppress(OSError):
            os.write(own, f"{PREFIX}{text}\n".encode())

    atexit.register(_clear_temporary)
    closed = record(attempt_dir, sys.stdin, say, primary=primary)
    if not closed:
        # what hangs would hang the interpreter's end as well
        _clear_temporary()
        os._exit(1)


def _clear_temporary() -> None:
    """Take away the temporary folder that the rank has made for this process, and may no longer be there to remove."""
    folder = Path(tempfile.gettempdir())
    if folder.name.startswith(TEMPORARY):
        shutil.rmtree(folder, ignore_errors=True)


def _trackers(attempt_dir: Path, tracking: TrackingConfig, say: Say, primary: bool) -> Iterator[tuple[str, Tracker]]:
    if tracking.csv and primary:
        yield "csv", CsvTracker()
    if tracking.tensorboard and primary:
        from orchestrator.tracking.tensorboard import TensorBoardTracker

        yield "TensorBoard", TensorBoardTracker()
    if tracking.wandb is not WandbMode.disabled:
        run_id = read_json(attempt_dir / "attempt.json")["wandb_id"]
        output = attempt_dir / OUTPUT
        yield "W&B", WandbTracker(tracking, run_id=run_id, say=say, primary=primary, output=output)


def _orders(orders: TextIO) -> Iterator[dict[str, Any]]:
    for line in orders:
        order = json.loads(line)
        yield order
        if "failed" in order:
            return


if __name__ == "__main__":
    main()
