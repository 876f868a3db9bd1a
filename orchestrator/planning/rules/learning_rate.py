"""Rules about the learning rate over the steps."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import LrSchedule
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.rules.registry import RuleContext, rule


@rule("warmup-steps", "the warmup ends before the run", Severity.warning)
def warmup_steps(context: RuleContext) -> Iterator[Finding]:
    """Otherwise the learning rate never leaves the warmup."""
    warmup, steps = context.config.lr_scheduler.warmup_steps, context.config.training.max_steps
    if warmup >= steps > 0:
        yield warning(
            "warmup-steps",
            "lr_scheduler.warmup_steps",
            f"{warmup} of training.max_steps={steps} steps are warmup: nothing follows it",
            f"set lr_scheduler.warmup_steps={steps // 10}",
        )


@rule("decay-steps", "the decay of wsd starts after the warmup", Severity.error)
def decay_steps(context: RuleContext) -> Iterator[Finding]:
    """A decay that reaches into the warmup would be cut short."""
    schedule, steps = context.config.lr_scheduler, context.config.training.max_steps
    if schedule.decay_steps is None:
        return
    if schedule.type is not LrSchedule.wsd:
        yield info(
            "decay-steps",
            "lr_scheduler.decay_steps",
            f"{schedule.decay_steps} has no effect with lr_scheduler.type={schedule.type.value}",
            "set lr_scheduler.decay_steps=null",
        )
    elif schedule.warmup_steps + schedule.decay_steps > steps:
        yield error(
            "decay-steps",
            "lr_scheduler.decay_steps",
            f"warmup {schedule.warmup_steps} + decay {schedule.decay_steps} are more than training.max_steps={steps}",
            f"set lr_scheduler.decay_steps={max(1, steps - schedule.warmup_steps)} or less",
        )


@rule("minimum-rate", "the learning rate ends below its peak", Severity.error)
def minimum_rate(context: RuleContext) -> Iterator[Finding]:
    """Cosine and wsd fall to min_lr."""
    schedule, peak = context.config.lr_scheduler, context.config.optimizer.lr
    if schedule.type is not LrSchedule.constant and schedule.min_lr > peak:
        yield error(
            "minimum-rate",
            "lr_scheduler.min_lr",
            f"{schedule.min_lr} is above the peak optimizer.lr={peak}",
            f"set lr_scheduler.min_lr={peak / 10}",
        )
