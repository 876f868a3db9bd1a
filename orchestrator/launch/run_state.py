"""How a run stands, read from the files of its attempt: on any host that sees them, whether or not its controller lives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.control import ControllerRecord, read_controller, read_outcome
from orchestrator.control import State as ControllerState
from orchestrator.launch.command import HOSTFILE
from orchestrator.launch.hostfile import read_hostfile
from orchestrator.lease import renewed
from orchestrator.metrics_file import last_entries
from orchestrator.presence import PROGRESS, Progress, read_progress, read_ranks
from orchestrator.run_dir import METRICS, Attempt, read_json

_RATE_ENTRIES = 20
"""Newest entries of the metrics that the time of a step is the mean of."""


class State(StrEnum):
    """How a run stands."""

    not_started = "not_started"
    starting = "starting"
    running = "running"
    saving = "saving"
    stopping = "stopping"
    completed = "completed"
    stopped = "stopped"
    """It was asked to end, and did."""
    failed = "failed"
    hung = "hung"
    abandoned = "abandoned"
    """Its controller has gone without a word; its ranks end by their lease."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the run will happen any more."""
        return self in (State.completed, State.stopped, State.failed, State.hung, State.abandoned)

    @property
    def is_bad(self) -> bool:
        """Whether it ended otherwise than anybody wished."""
        return self in (State.failed, State.hung, State.abandoned)


_ENDINGS = {"completed": State.completed, "interrupted": State.stopped, "failed": State.failed, "hung": State.hung}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """A host of the run: which ranks it was to have, and how many of them have started."""

    name: str
    ranks: range
    started: int
    exit_code: int | None
    """Of its launcher, once that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How a run stands. Times are seconds; ``reason`` says why it ended, None while it goes on."""

    state: State
    reason: str | None
    controller: ControllerRecord | None
    progress: Progress | None
    silent_seconds: float | None
    """Since the last sign of progress, by the clocks of this host and of the disk; None before the first."""
    max_steps: int
    step_seconds: float | None
    trained: Mapping[str, Any] | None
    """The newest entry of a training step in the metrics."""
    evaluated: Mapping[str, Any] | None
    hosts: tuple[HostState, ...]

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.progress.step if self.progress is not None else 0

    @property
    def remaining_seconds(self) -> float | None:
        """What the steps left will take, without evaluations and checkpoints; None if that is not known, or it is over."""
        if self.step_seconds is None or self.state.is_over:
            return None
        return max(self.max_steps - self.step, 0) * self.step_seconds


def read_run_state(attempt: Attempt) -> RunState:
    """How ``attempt`` stands. Takes up to ``lease.EXPIRE_SECONDS`` if its controller seems to have gone.

    Raises:
        OSError, ValueError: its ``config.json`` cannot be read.
    """
    state, reason = state_of(attempt.path)
    progress, outcome = read_progress(attempt.path), read_outcome(attempt.path)
    entries = last_entries(attempt.path / METRICS)
    trained = [entry for entry in entries if entry.get("kind") == "train"]
    evaluated = [entry for entry in entries if entry.get("kind") == "evaluate"]
    seconds = [float(entry["step_seconds"]) for entry in trained[-_RATE_ENTRIES:] if "step_seconds" in entry]
    return RunState(
        state=state,
        reason=reason,
        controller=read_controller(attempt.path),
        progress=progress,
        silent_seconds=_age(attempt.path / PROGRESS),
        max_steps=int(read_json(attempt.path / "config.json")["training"]["max_steps"]),
        step_seconds=sum(seconds) / len(seconds) if seconds else None,
        trained=trained[-1] if trained else None,
        evaluated=evaluated[-1] if evaluated else None,
        hosts=_hosts(attempt.path, outcome),
    )


def state_of(attempt: Path) -> tuple[State, str | None]:
    """The state alone, and why the run ended."""
    return states_of([attempt])[attempt]


def states_of(attempts: Sequence[Path]) -> dict[Path, tuple[State, str | None]]:
    """The states of many attempts, and why those that are over ended.

    Takes up to ``lease.EXPIRE_SECONDS`` if controllers seem to have gone, however many.
    """
    controllers = {attempt: read_controller(attempt) for attempt in attempts}
    undecided = [
        attempt
        for attempt, controller in controllers.items()
        if controller is not None and not controller.has_ended and read_outcome(attempt) is None
    ]
    alive = renewed(undecided)
    return {attempt: _state(attempt, controller, is_alive=attempt in alive) for attempt, controller in controllers.items()}


def _state(attempt: Path, controller: ControllerRecord | None, *, is_alive: bool) -> tuple[State, str | None]:
    # read now: the outcome may have come while the lease was watched
    outcome = read_outcome(attempt)
    if outcome is not None:
        return _ENDINGS.get(outcome["status"], State.failed), str(outcome["reason"])
    if controller is None:
        return State.not_started, None
    if not is_alive:
        return State.abandoned, f"its controller on {controller.host} (process {controller.pid}) has gone"
    match controller.state:
        case ControllerState.saving:
            return State.saving, None
        case ControllerState.stopping:
            return State.stopping, None
        case ControllerState.connecting:
            return State.starting, None
    return State.running if read_progress(attempt) is not None else State.starting, None


def _age(path: Path) -> float | None:
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return None


def _hosts(attempt: Path, outcome: Mapping[str, Any] | None) -> tuple[HostState, ...]:
    """The hosts as the attempt was started; ranks go to them in order."""
    named, _ = read_hostfile(attempt / HOSTFILE)
    started = {record.rank for record in read_ranks(attempt)}
    exits = {entry["host"]: entry["exit_code"] for entry in (outcome or {}).get("hosts", ())}
    hosts: list[HostState] = []
    first = 0
    for host in named:
        ranks = range(first, first + host.slots)
        first = ranks.stop
        hosts.append(
            HostState(
                name=host.name, ranks=ranks, started=sum(rank in started for rank in ranks), exit_code=exits.get(host.name)
            )
        )
    return tuple(hosts)


def equal_hosts(hosts: Sequence[HostState]) -> list[list[HostState]]:
    """Hosts in groups that have as many ranks, as many of them started, and ended alike."""
    groups: dict[tuple[int, int, int | None], list[HostState]] = {}
    for host in hosts:
        groups.setdefault((len(host.ranks), host.started, host.exit_code), []).append(host)
    return list(groups.values())
