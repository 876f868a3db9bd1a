"""The trackers of a rank: ``metrics.jsonl`` and the recorder on rank 0, nothing on most others. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.run_dir import METRICS
from orchestrator.tracking.jsonl import JsonlTracker
from orchestrator.tracking.recorder import RecorderTracker
from orchestrator.tracking.tracker import CompositeTracker, Tracker
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTracking:
    """What a rank records to; ``tracker`` is None where it records nothing."""

    tracker: Tracker | None
    recorder: RecorderTracker | None

    @property
    def wandb(self) -> dict[str, Any] | None:
        """What W&B has of the run, once it is closed; None if it has nothing."""
        return None if self.recorder is None else self.recorder.record


def tracking_of(attempt: WorkerAttempt, *, waits: Callable[[], None]) -> RankTracking:
    """The trackers of this rank. A shared W&B run has a writer on the first rank of every host.

    ``waits`` shows again and again, while the records are closed, that the rank is not hung.
    """
    config = attempt.config.tracking
    if not attempt.is_first and not (config.shared and attempt.local_rank == 0):
        return RankTracking(tracker=None, recorder=None)
    recorder = RecorderTracker(config, run_id=attempt.wandb_id, say=say, waits=waits, primary=attempt.is_first)
    if not attempt.is_first:
        return RankTracking(tracker=recorder, recorder=recorder)
    return RankTracking(tracker=CompositeTracker([JsonlTracker(attempt.path / METRICS), recorder]), recorder=recorder)
