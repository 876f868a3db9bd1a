"""Why a run ends: decided once, by the first thing that happens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.launch.ending.stacks import StackGroup


class Status(StrEnum):
    """The ways a run ends."""

    completed = "completed"
    interrupted = "interrupted"
    """It was asked to end, and did, with or without a checkpoint."""
    failed = "failed"
    hung = "hung"


class StoppedBy(StrEnum):
    """Who asked a run to end."""

    signal = "signal"
    """Ctrl-C, or another signal to its controller."""
    request = "request"
    """The file ``stop`` of the attempt: ``orchestrator stop``."""
    time_limit = "time_limit"
    """A batch system, whose time limit is near: SIGUSR1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why the controller ends a run."""

    status: Status
    reason: str
    host: str | None = None
    """Where it failed."""
    is_explained: bool = True
    """Whether ``reason`` is the cause; otherwise it lies with a rank, or in the log."""
    stopped_by: StoppedBy | None = None
    stacks: tuple[StackGroup, ...] = ()
