"""What follows from the options of the learning rate."""

from __future__ import annotations

from orchestrator.config.schema import LrSchedulerConfig


def decay_steps(schedule: LrSchedulerConfig, max_steps: int) -> int:
    """Optimizer steps of wsd's decay in a run of ``max_steps``: a tenth of it where nothing is said."""
    return max(1, max_steps // 10) if schedule.decay_steps is None else schedule.decay_steps
