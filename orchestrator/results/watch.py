"""A run as it goes on: what its files say now. Each look reads only what was added since the last."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.control import State, read_controller
from orchestrator.launch.command import HOSTFILE
from orchestrator.launch.hostfile import read_hostfile
from orchestrator.metrics_file import TAIL_BYTES, Entry, last_entry_with, parsed
from orchestrator.presence import RANKS, Phase, read_progress
from orchestrator.results.measures import HELD_OUT_LOSS, number
from orchestrator.results.prediction import Prediction, prediction_of
from orchestrator.run_dir import METRICS, read_json

_RATE_ENTRIES = 20
"""Newest entries of the metrics that the time of a step is the mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of a run at a moment. Times are seconds, sizes bytes; None where nothing is known yet."""

    name: str
    state: State | None
    """Of its controller."""
    phase: Phase | None
    step: int
    max_steps: int
    elapsed_seconds: float | None
    step_seconds: float | None
    """The mean of the newest steps."""
    trained: Entry
    """The newest entry of a training step in the metrics."""
    evaluated: Entry
    """The newest with a held-out loss."""
    prediction: Prediction
    """Of rank 0, which measures."""
    num_hosts: int
    num_ranks: int
    started_ranks: int

    @property
    def remaining_seconds(self) -> float | None:
        """What the steps left will take, without evaluations and checkpoints."""
        return None if self.step_seconds is None else max(self.max_steps - self.step, 0) * self.step_seconds


class RunWatch:
    """Looks at an attempt again and again. Files that are not there yet, or not whole, leave gaps."""

    def __init__(self, attempt: Path) -> None:
        self._attempt = attempt
        config, plan = _read(attempt / "config.json"), _read(attempt / "plan.json")
        self._name = attempt.parents[1].name
        self._max_steps = int((config.get("training") or {}).get("max_steps") or 0)
        self._prediction = _prediction(plan, config)
        hosts, _ = read_hostfile(attempt / HOSTFILE)
        self._num_hosts, self._num_ranks = len(hosts), sum(host.slots for host in hosts)
        self._started_ranks = 0
        self._metrics = _GrowingMetrics(attempt / METRICS)

    def look(self) -> Sight:
        """What is to be seen now."""
        self._metrics.read()
        controller, progress = read_controller(self._attempt), read_progress(self._attempt)
        if self._started_ranks < self._num_ranks:
            self._started_ranks = sum(1 for _ in (self._attempt / RANKS).glob("*.json"))
        logged = self._metrics.trained.get("step")
        return Sight(
            name=self._name,
            state=None if controller is None else controller.state,
            phase=None if progress is None else progress.phase,
            step=max(0 if progress is None else progress.step, logged if isinstance(logged, int) else 0),
            max_steps=self._max_steps,
            elapsed_seconds=None if controller is None else max(time.time() - controller.started, 0.0),
            step_seconds=self._metrics.step_seconds,
            trained=self._metrics.trained,
            evaluated=self._metrics.evaluated,
            prediction=self._prediction,
            num_hosts=self._num_hosts,
            num_ranks=self._num_ranks,
            started_ranks=self._started_ranks,
        )


class _GrowingMetrics:
    """The newest entries of a metrics file that may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None
        self._part = b""
        self._seconds: deque[float] = deque(maxlen=_RATE_ENTRIES)
        self.trained: Entry = {}
        self.evaluated: Entry = {}

    @property
    def step_seconds(self) -> float | None:
        """The mean over the newest entries."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    def read(self) -> None:
        """Take in what has been added; at first, the end of what there is."""
        try:
            with self._path.open("rb") as file:
                if self._offset is None:
                    self._offset = max(self._path.stat().st_size - TAIL_BYTES, 0)
                    self.evaluated = last_entry_with(self._path, HELD_OUT_LOSS) or {}
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return
        self._offset += len(added)
        *lines, self._part = (self._part + added).split(b"\n")
        for entry in parsed(lines):
            if entry.get("kind") == "train":
                self.trained = entry
                if (seconds := number(entry.get("step_seconds"))) is not None:
                    self._seconds.append(seconds)
            elif number(entry.get(HELD_OUT_LOSS)) is not None:
                self.evaluated = entry


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def _prediction(plan: Mapping[str, Any], config: Mapping[str, Any]) -> Prediction:
    try:
        return prediction_of(plan, config, rank=0)
    except (KeyError, TypeError, ValueError):
        return Prediction()
