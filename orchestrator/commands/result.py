"""What a command hands back to the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The end of a command: its exit code, the JSON object it stands for, and the same for people."""

    exit_code: int
    payload: dict[str, Any]
    text: Sequence[RenderableType]
    remarks: Sequence[RenderableType] = ()
    """What people are told on standard error, where ``text`` is meant for a file."""
    metric: float | None = None
    """The objective of a sweep, where the command has one."""


OK = 0
REFUSED = 2
HOST_NOT_READY = 3
RUN_FAILED = 4
INTERRUPTED = 130
