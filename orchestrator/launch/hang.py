"""Whether a run still gets on, as rank 0 shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.presence import Phase, Progress, read_progress

_TRAINING = (Phase.train, Phase.evaluate, Phase.save)
"""Phases in which there is something to save."""


@dataclass(slots=True)
class ProgressWatch:
    """Looks at the progress of an attempt."""

    attempt: Path
    clock: Callable[[], float] = time.monotonic
    seen: Progress | None = None
    _moved: float = field(init=False)

    def __post_init__(self) -> None:
        self._moved = self.clock()

    def look(self) -> None:
        """Read it again."""
        progress = read_progress(self.attempt)
        if progress is not None and progress != self.seen:
            self.seen, self._moved = progress, self.clock()

    @property
    def silent_seconds(self) -> float:
        """How long nothing has moved; at first, since the start."""
        return self.clock() - self._moved

    @property
    def has_begun_training(self) -> bool:
        """Whether there is something that a checkpoint would keep."""
        return self.seen is not None and self.seen.phase in _TRAINING and self.seen.step > 0

    @property
    def place(self) -> str:
        """How far it had come, for people."""
        return (
            "before its first sign of progress" if self.seen is None else f"in phase {self.seen.phase} of step {self.seen.step}"
        )
