"""Reads a run into a row: only small files, and the ends of large ones.

What is missing or damaged leaves gaps, and is said in the row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.enums import Direction
from orchestrator.control import OUTCOME, read_controller, read_outcome
from orchestrator.launch.ending.status import StoppedBy
from orchestrator.launch.run_state import State, states_of
from orchestrator.launch.slurm.job import JOB_RECORD
from orchestrator.metrics_file import Entry
from orchestrator.presence import read_progress
from orchestrator.results.find import FoundRun
from orchestrator.results.measures import inside, median, metric_of, steady, trained_entries, whole
from orchestrator.results.options import flattened
from orchestrator.results.prediction import Prediction, prediction_of
from orchestrator.results.row import Row, Status
from orchestrator.run_dir import METRICS, RESULT, Attempt, newest_attempt, newest_started
from orchestrator.sweep_point import POINT_CONFIG, PointStatus, Sweep, SweepPoint, read_point, read_sweep

_CLOCK_SECONDS = 60.0
"""By so much the clocks of a sweep and of a run may differ."""
_SILENT_SECONDS = 3600.0
"""A point that says it is running, without an attempt for so long, is not."""
_OF_STATE = {
    State.not_started: Status.not_started,
    State.starting: Status.starting,
    State.running: Status.running,
    State.saving: Status.saving,
    State.stopping: Status.stopping,
    State.completed: Status.finished,
    State.stopped: Status.stopped,
    State.failed: Status.failed,
    State.hung: Status.hung,
    State.abandoned: Status.dead,
}
_OF_POINT = {
    PointStatus.finished: Status.finished,
    PointStatus.infeasible: Status.infeasible,
    PointStatus.failed: Status.failed,
    PointStatus.interrupted: Status.interrupted,
}


def read_rows(found: Sequence[FoundRun]) -> list[Row]:
    """A row for each run. Takes up to ``lease.EXPIRE_SECONDS`` if controllers seem to have gone, however many."""
    files = [_RunFiles(run) for run in found]
    states = states_of([each.attempt.path for each in files if each.attempt is not None])
    return [each.row(states[each.attempt.path] if each.attempt is not None else None) for each in files]


@dataclass(slots=True)
class _RunFiles:
    """The files of a run; ``problems`` collects those that are damaged."""

    run: FoundRun
    problems: list[str] = field(default_factory=list)
    attempt: Attempt | None = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = newest_started(self.run.path) or newest_attempt(self.run.path)

    def row(self, state: tuple[State, str | None] | None) -> Row:
        """The row of this run, whose newest attempt stands as ``state`` says."""
        point, sweep = self._point(), self._sweep()
        config, plan, result = self._json("config.json"), self._json("plan.json"), self._json(RESULT)
        options = flattened(config or self._read(self.run.path / POINT_CONFIG))
        status, reason = self._status(point, state)
        metrics = None if self.attempt is None else self.attempt.path / METRICS
        trained = trained_entries(metrics)
        typical = steady(trained, metrics)
        metric_name, metric = metric_of(point, sweep, options, result, metrics)
        memory, predicted_memory = self._memory(plan, config, result, trained)
        return Row(
            name=self.run.name,
            path=self.run.path,
            sweep_dir=self.run.sweep_dir,
            number=None if point is None else point.number,
            status=status,
            overrides=self._overrides(point),
            options=options,
            metric=metric,
            metric_name=metric_name,
            direction=_direction(sweep, options),
            step=self._step(result, trained),
            max_steps=whole(options.get("training.max_steps")),
            tokens_per_second=median(typical, "tokens_per_second"),
            mfu=median(typical, "mfu"),
            step_seconds=median(typical, "step_seconds"),
            predicted_step_seconds=self._prediction(plan, config).step_seconds,
            memory_bytes=memory,
            predicted_memory_bytes=predicted_memory,
            duration_seconds=self._duration(point, status),
            reason="; ".join([*([reason] if reason else []), *self.problems]) or None,
        )

    def _status(self, point: SweepPoint | None, state: tuple[State, str | None] | None) -> tuple[Status, str | None]:
        """How it stands and why; a point whose sweep was killed still says that it runs, and its attempt knows better."""
        if point is None or (point.status is PointStatus.running and state is not None and not self._runs_again(point)):
            return self._attempt_status(state)
        if point.status is PointStatus.running:
            if time.time() - point.started > _SILENT_SECONDS:
                return Status.dead, "it was begun, and nothing was started"
            return Status.running, None
        status = _OF_POINT[point.status]
        if status is Status.failed and state is not None and state[0] is State.hung:
            status = Status.hung
        return status, point.reason

    def _runs_again(self, point: SweepPoint) -> bool:
        """Whether the newest attempt is that of an earlier start of the point."""
        controller = None if self.attempt is None else read_controller(self.attempt.path)
        return controller is not None and controller.started < point.started - _CLOCK_SECONDS

    def _attempt_status(self, state: tuple[State, str | None] | None) -> tuple[Status, str | None]:
        if state is None or self.attempt is None:
            return (Status.submitted if (self.run.path / JOB_RECORD).exists() else Status.not_started), None
        status = _OF_STATE[state[0]]
        if status is Status.stopped and (read_outcome(self.attempt.path) or {}).get("stopped_by") == StoppedBy.signal:
            status = Status.interrupted
        return status, None if status is Status.finished else state[1]

    def _overrides(self, point: SweepPoint | None) -> tuple[str, ...]:
        if point is not None:
            return point.overrides
        words = self._json("attempt.json").get("overrides", ())
        return tuple(map(str, words)) if isinstance(words, list) else ()

    def _prediction(self, plan: Mapping[str, Any], config: Mapping[str, Any], *, rank: int | None = None) -> Prediction:
        try:
            return prediction_of(plan, config, rank=rank)
        except (KeyError, TypeError, ValueError):
            return Prediction()

    def _memory(
        self, plan: Mapping[str, Any], config: Mapping[str, Any], result: Mapping[str, Any], trained: Sequence[Entry]
    ) -> tuple[int | None, int | None]:
        """Measured and predicted, of one rank."""
        measured = whole(inside(result, "memory", "measured_bytes"))
        if measured is not None:
            return measured, whole(inside(result, "memory", "predicted_bytes"))
        measured = whole(trained[-1].get("memory_bytes")) if trained else None
        return measured, self._prediction(plan, config, rank=None if measured is None else 0).memory_bytes

    def _step(self, result: Mapping[str, Any], trained: Sequence[Entry]) -> int | None:
        if self.attempt is None:
            return None
        progress = read_progress(self.attempt.path)
        known = [result.get("steps"), progress.step if progress else None, trained[-1].get("step") if trained else None]
        return max((step for step in map(whole, known) if step is not None), default=None)

    def _duration(self, point: SweepPoint | None, status: Status) -> float | None:
        """From its start to its end, or to the last that was heard of it."""
        controller = None if self.attempt is None else read_controller(self.attempt.path)
        start = point.started if point is not None else controller.started if controller is not None else None
        end = point.ended if point is not None else None
        if start is None:
            return None
        if end is None and status in (Status.starting, Status.running, Status.saving, Status.stopping):
            end = time.time()
        if end is None and self.attempt is not None:
            end = max(map(_modified, (self.attempt.path / OUTCOME, self.attempt.log_file)))
        return max(end - start, 0.0) if end else None

    def _json(self, name: str) -> dict[str, Any]:
        """A file of the attempt; nothing if it is not there."""
        return {} if self.attempt is None else self._read(self.attempt.path / name)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            value = None
        if not isinstance(value, dict):
            self.problems.append(f"{path.name} is damaged")
            return {}
        return value

    def _point(self) -> SweepPoint | None:
        try:
            return read_point(self.run.path)
        except (OSError, ValueError) as problem:
            self.problems.append(str(problem))
            return None

    def _sweep(self) -> Sweep | None:
        if self.run.sweep_dir is None:
            return None
        try:
            return read_sweep(self.run.sweep_dir)
        except (OSError, ValueError) as problem:
            self.problems.append(str(problem))
            return None


def _direction(sweep: Sweep | None, options: Mapping[str, Any]) -> Direction:
    said = sweep.direction if sweep is not None else options.get("sweep.direction")
    return Direction.maximize if said == Direction.maximize else Direction.minimize


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
