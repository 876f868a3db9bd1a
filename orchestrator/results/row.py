"""A run as a row of a table: how it stands, what it was asked for, what came out, what was predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.config.enums import Direction


class Status(StrEnum):
    """How a run stands, in the words of ``status`` and of a sweep's points."""

    submitted = "submitted"
    """Its Slurm job has not begun it."""
    not_started = "not started"
    starting = "starting"
    running = "running"
    saving = "saving"
    stopping = "stopping"
    finished = "finished"
    infeasible = "infeasible"
    failed = "failed"
    interrupted = "interrupted"
    """By a signal, as Ctrl-C sends one."""
    stopped = "stopped"
    """It was asked to end: ``orchestrator stop``, or a time limit."""
    hung = "hung"
    dead = "dead"
    """Its controller has gone without a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run. Sizes are bytes and times seconds; None where nothing is known (yet)."""

    name: str
    path: Path
    sweep_dir: Path | None
    number: int | None
    """Of a sweep's point."""
    status: Status
    reason: str | None
    """Why it is infeasible, or ended otherwise than well; and which of its files are damaged."""
    overrides: tuple[str, ...]
    options: Mapping[str, Any]
    """The resolved configuration by the paths of its options; empty where there is none."""
    metric: float | None
    metric_name: str | None
    direction: Direction
    step: int | None
    max_steps: int | None
    tokens_per_second: float | None
    """Of all devices; like the two below, the median of the newest steps."""
    mfu: float | None
    step_seconds: float | None
    predicted_step_seconds: float | None
    memory_bytes: int | None
    """Peak of the rank that took most; of rank 0 while it runs."""
    predicted_memory_bytes: int | None
    """Of the same rank; of a run that has measured nothing, of the rank that takes most."""
    duration_seconds: float | None
    """Of its newest start."""

    @property
    def is_finished(self) -> bool:
        """Whether it has come to its end as it was to."""
        return self.status is Status.finished
