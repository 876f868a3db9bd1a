"""What a run says while it goes on: rank 0's lines, which the launcher shows to the user, and how far it has come."""

from __future__ import annotations

import os
import time
from pathlib import Path

from orchestrator.presence import Phase, ProgressWriter

PREFIX = "[orchestrator] "
_DATA_SECONDS = 1.0
"""Between two signs from the making of the tokens."""


def say(text: str) -> None:
    """Print a line for the user, from rank 0 only."""
    if _is_first():
        print(PREFIX + text, flush=True)


class ProgressSigns:
    """Shows that this run gets on, so that it is not taken for hung. A sign costs one small write."""

    def __init__(self, attempt: Path) -> None:
        self._writer = ProgressWriter(attempt)
        self._step = 0
        self._last_data = 0.0
        self.enter(Phase.start)

    def enter(self, phase: Phase, *, step: int | None = None) -> None:
        """Show that the run has come to ``phase``, or further in it, after ``step`` steps (None: as many as before).

        Rank 0 shows it for all.
        """
        self._step = self._step if step is None else step
        if _is_first():
            self._writer.advance(phase, step=self._step)

    def data(self) -> None:
        """Show that the data gets on. Whichever rank makes the tokens shows it: all others, rank 0 too, wait for it."""
        now = time.monotonic()
        if now - self._last_data >= _DATA_SECONDS:
            self._last_data = now
            self._writer.advance(Phase.data, step=self._step)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"
