"""What a finished attempt reports: ``result.json``."""

from __future__ import annotations

from typing import Any

from orchestrator.worker.data.run_data import RunData
from orchestrator.worker.loop import Training, TrainingOutcome
from orchestrator.worker.memory import memory_report
from orchestrator.worker.stack import stack


def attempt_result(training: Training, data: RunData, outcome: TrainingOutcome) -> dict[str, Any]:
    """The content of ``result.json`` that the training knows; every rank calls it.

    ``status`` is ``stopped`` when the run was asked to stop before its last step, and saved if it had taken one.
    """
    tokens = outcome.trained_steps * training.throughput.tokens_per_step
    held_out = outcome.held_out.main
    return {
        "status": "stopped" if outcome.stopped else "completed",
        "attempt": training.attempt.number,
        "steps": outcome.position.step,
        "final_loss": outcome.final_loss,
        "held_out_loss": held_out,
        "held_out_losses": dict(outcome.held_out.named),
        "best": outcome.best,
        "unigram_entropy": data.unigram_entropy,
        "metric": outcome.final_loss if held_out is None else held_out,
        "tokens": tokens,
        "tokens_per_second": tokens / outcome.step_seconds if outcome.step_seconds else 0.0,
        "memory": memory_report(training.attempt.plan),
        "stack": stack(),
        "checkpoint": None if outcome.checkpoint is None else str(outcome.checkpoint),
        "profile": None if training.profiles.folder is None else str(training.profiles.folder),
        "tokenizer": None if data.tokenizer_path is None else str(data.tokenizer_path),
    }
