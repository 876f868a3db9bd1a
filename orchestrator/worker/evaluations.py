"""The evaluations of a training over its steps, and the best of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed

from orchestrator.checkpoints.catalogue import MANIFEST, best, tag_of
from orchestrator.tracking.tracker import Tracker
from orchestrator.units import format_seconds
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.data.batches import BatchReader
from orchestrator.worker.evaluate import HeldOutLosses, held_out_losses
from orchestrator.worker.metrics import diverged, evaluate_entry, evaluate_line
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEvaluation:
    """The lowest held-out loss so far, and after how many steps it was measured."""

    step: int
    held_out_loss: float


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """Measures held-out losses and remembers the last and the best; every rank has the same.

    The best is that of all attempts as far as checkpoints know of it. What is measured before the first step is never the
    best: there is no checkpoint of it.
    """

    attempt: WorkerAttempt
    engine: Any
    reader: BatchReader
    tracker: Tracker | None
    advanced: Callable[[], None]
    best: BestEvaluation | None = None
    last: HeldOutLosses = field(default_factory=HeldOutLosses)
    step: int | None = None
    """After which ``last`` was measured; None if nothing was."""

    def measure(self, step: int) -> bool:
        """Measure every held-out set after ``step`` steps; whether it is the best so far.

        Raises:
            FloatingPointError: the training has diverged.
        """
        started = time.monotonic()
        max_sequences = self.attempt.config.training.evaluate_sequences
        losses = held_out_losses(self.engine, self.reader, max_sequences=max_sequences, advanced=self.advanced)
        for name, loss in {"held-out loss": losses.main, **losses.named}.items():
            if loss is not None and not math.isfinite(loss):
                raise diverged(name, loss, step=step)
        if self.tracker is not None and (losses.main is not None or losses.named):
            self.tracker.log(evaluate_entry(step, losses.main, losses.named))
            say(evaluate_line(step, losses.main, losses.named, duration=format_seconds(time.monotonic() - started)))
        self.last, self.step = losses, step
        is_best = step > 0 and losses.main is not None and (self.best is None or losses.main < self.best.held_out_loss)
        if is_best and losses.main is not None:
            self.best = BestEvaluation(step=step, held_out_loss=losses.main)
        return is_best

    def loss_at(self, step: int) -> float | None:
        """The held-out loss after ``step`` steps, if it was the last that was measured."""
        return self.last.main if step == self.step else None

    def best_entry(self) -> dict[str, Any] | None:
        """The ``best`` of ``result.json``; its checkpoint is null where there is none of that step, or none any more."""
        if self.best is None:
            return None
        path = self.attempt.checkpoint_dir / tag_of(self.best.step)
        is_there = (path / MANIFEST).exists()
        loss = self.best.held_out_loss
        return {"step": self.best.step, "held_out_loss": loss, "checkpoint": str(path) if is_there else None}


def earlier_best(checkpoint_dir: Path) -> BestEvaluation | None:
    """The best that the checkpoints of earlier attempts know of; every rank calls it and gets what rank 0 sees."""
    found = best(checkpoint_dir) if torch.distributed.get_rank() == 0 else None
    said: list[tuple[int, float] | None] = [None]
    if found is not None and found.manifest.held_out_loss is not None:
        said = [(found.manifest.step, found.manifest.held_out_loss)]
    torch.distributed.broadcast_object_list(said, src=0)
    return None if said[0] is None else BestEvaluation(step=said[0][0], held_out_loss=said[0][1])
