"""The learning rate of each optimizer step: a linear warmup, then the configured shape."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from orchestrator.config.enums import LrSchedule
from orchestrator.config.schema import LrSchedulerConfig, RunConfig
from orchestrator.deepspeed_config.learning_rate import decay_steps


def learning_rate(step: int, *, peak: float, schedule: LrSchedulerConfig, max_steps: int) -> float:
    """The learning rate of optimizer step ``step`` (the first step is 0) of ``max_steps``.

    The warmup reaches the peak at its last step, so no step is taken with a rate of zero; cosine and wsd reach
    ``min_lr`` at the last step of the run. Steps beyond the last keep its rate.
    """
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    if schedule.type is LrSchedule.constant:
        return peak
    first_decaying = _first_decaying_step(schedule, max_steps)
    if step < first_decaying:
        return peak
    progress = min(1.0, (step + 1 - first_decaying) / max(1, max_steps - first_decaying))
    is_cosine = schedule.type is LrSchedule.cosine
    remaining = 0.5 * (1.0 + math.cos(math.pi * progress)) if is_cosine else 1.0 - progress
    return schedule.min_lr + (peak - schedule.min_lr) * remaining


def lr_scheduler_factory(config: RunConfig) -> Callable[[Optimizer], LambdaLR]:
    """What makes the scheduler once DeepSpeed has made the optimizer from its configuration.

    DeepSpeed moves the scheduler on after every step that changed the weights, so steps that fp16 skips do not use up
    learning rate.
    """
    peak = config.optimizer.lr

    def factor(step: int) -> float:
        rate = learning_rate(step, peak=peak, schedule=config.lr_scheduler, max_steps=config.training.max_steps)
        return rate / peak if peak > 0 else 1.0

    return lambda optimizer: LambdaLR(optimizer, factor)


def _first_decaying_step(schedule: LrSchedulerConfig, max_steps: int) -> int:
    if schedule.type is LrSchedule.cosine:
        return schedule.warmup_steps
    return max(schedule.warmup_steps, max_steps - decay_steps(schedule, max_steps))
