"""Whether a run still gets on, as rank 0 shows it, and where its ranks stand when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.checkpoints.catalogue import unfinished_bytes
from orchestrator.launch.ending.stacks import describe, ranks_with_stacks, stack_groups
from orchestrator.launch.ending.status import Ending, Status
from orchestrator.presence import Phase, Progress, read_progress, read_ranks
from orchestrator.run_dir import checkpoint_dir
from orchestrator.units import format_seconds

_BEFORE_ALL = (Phase.start, Phase.data, Phase.build)
"""Phases of rank 0 in which others may not be there yet."""
_TRAINING = (Phase.train, Phase.evaluate, Phase.save)
"""Phases in which there is something to save."""


_MEASURE_SECONDS = 30.0
"""Between two looks at the files of a checkpoint, which may be thousands on a busy disk."""


@dataclass(slots=True)
class ProgressWatch:
    """Looks at the progress of an attempt. While a checkpoint is saved its growing files are progress as well."""

    attempt: Path
    clock: Callable[[], float] = time.monotonic
    seen: Progress | None = None
    _moved: float = field(init=False)
    _measured: float = field(init=False)
    _bytes: int | None = None
    """Of what is being saved; None before it was measured."""

    def __post_init__(self) -> None:
        self._moved = self._measured = self.clock()

    def look(self) -> None:
        """Read it again."""
        progress = read_progress(self.attempt)
        if progress is not None and progress != self.seen:
            self.seen, self._moved, self._measured, self._bytes = progress, self.clock(), self.clock(), None
        elif self.seen is not None and self.seen.phase is Phase.save and self.clock() - self._measured >= _MEASURE_SECONDS:
            before, self._bytes = self._bytes, unfinished_bytes(checkpoint_dir(self.attempt.parents[1]))
            self._measured = self.clock()
            if before not in (None, self._bytes):
                self._moved = self._measured

    @property
    def silent_seconds(self) -> float:
        """How long nothing has moved; at first, since the start. A script that has reported no step yet is not silent."""
        if self.seen is not None and self.seen.phase is Phase.script and self.seen.step == 0:
            return 0.0
        return self.clock() - self._moved

    @property
    def all_have_started(self) -> bool:
        """Whether every rank has come to where they wait for each other."""
        seen = self.seen
        is_in_script = seen is not None and seen.phase is Phase.script
        return seen is not None and (seen.step > 0 if is_in_script else seen.phase not in _BEFORE_ALL)

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


def hung(attempt: Path, watch: ProgressWatch, *, may_wait: bool) -> Ending | None:
    """That a run hangs, and where its ranks stand; None while stacks they were asked for are missing and ``may_wait``."""
    missing = {record.rank for record in read_ranks(attempt)} - ranks_with_stacks(attempt)
    if missing and may_wait:
        return None
    groups = tuple(stack_groups(attempt))
    reason = f"the run hangs {watch.place}: no progress for {format_seconds(watch.silent_seconds)}"
    if missing:
        reason += f"; no stack of rank {', '.join(map(str, sorted(missing)))}, which may be stopped or waiting for a disk"
    if groups:
        reason += f"; {describe(groups[:1])}"
    return Ending(status=Status.hung, reason=reason, stacks=groups)
