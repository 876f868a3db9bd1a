"""How an attempt ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """The ways a run ends."""

    completed = "completed"
    interrupted = "interrupted"
    """It was asked to end, and did, with or without a checkpoint."""
    failed = "failed"
    hung = "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutcome:
    """What the agent of a host said last; ``exit_code`` is the launcher's, None when the agent was lost."""

    host: str
    exit_code: int | None
    meaning: str
    ranks_left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    status: Status
    reason: str
    """One line for people."""
    stopped_by: str | None
    """Who asked it to end: ``signal``, ``request``, ``time_limit``."""
    agents: tuple[AgentOutcome, ...]
    result: Mapping[str, Any] | None
    """What rank 0 left of a run that ended well, or was saved and stopped."""

    def to_dict(self) -> dict[str, Any]:
        """The content of ``outcome.json``."""
        return asdict(self)
