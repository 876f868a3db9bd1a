"""Who records a run, on which ranks. No torch: a training script of the user's own is recorded by the same."""

from __future__ import annotations

from orchestrator.run_dir import METRICS
from orchestrator.tracking.jsonl import JsonlTracker
from orchestrator.tracking.recorder import RecorderTracker
from orchestrator.tracking.tracker import CompositeTracker, Tracker
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.progress import say


def recorder_of(attempt: WorkerAttempt) -> RecorderTracker | None:
    """What records the run beside ``metrics.jsonl``: of rank 0, and for a shared W&B run of the first rank of every host."""
    tracking = attempt.config.tracking
    if not attempt.is_first and not (tracking.shared and attempt.local_rank == 0):
        return None
    return RecorderTracker(tracking, run_id=attempt.wandb_id, say=say, primary=attempt.is_first)


def tracker_of(attempt: WorkerAttempt, recorder: RecorderTracker | None) -> Tracker | None:
    """``recorder``, with ``metrics.jsonl`` before it on rank 0."""
    if recorder is None or not attempt.is_first:
        return recorder
    return CompositeTracker([JsonlTracker(attempt.path / METRICS), recorder])
