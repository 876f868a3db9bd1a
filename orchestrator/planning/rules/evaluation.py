"""Rules about evaluations, and what depends on them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.rules.registry import RuleContext, rule


@rule("keep-best", "a best checkpoint is told by a held-out loss", Severity.error)
def keep_best(context: RuleContext) -> Iterator[Finding]:
    """It is the loss of the held-out part of the training data that decides, not those of further sets."""
    config = context.config
    if not config.checkpoint.keep_best:
        return
    if config.data.held_out_fraction == 0:
        yield error(
            "keep-best",
            "checkpoint.keep_best",
            "data.held_out_fraction=0 leaves nothing to measure, so no checkpoint is the best",
            "set data.held_out_fraction=0.02, or checkpoint.keep_best=false",
        )
    elif config.training.evaluate_every == 0:
        yield warning(
            "keep-best",
            "checkpoint.keep_best",
            "training.evaluate_every=0 measures at the end only: the best checkpoint is the last",
            f"set training.evaluate_every={max(1, config.training.max_steps // 10)}, or checkpoint.keep_best=false",
        )


@rule("evaluate-nothing", "evaluations have something to measure", Severity.info)
def evaluate_nothing(context: RuleContext) -> Iterator[Finding]:
    """Without a held-out part or a further set they are left out."""
    config = context.config
    wanted = {"evaluate_every": config.training.evaluate_every > 0, "evaluate_at_start": config.training.evaluate_at_start}
    if config.data.held_out_fraction > 0 or config.data.evaluation:
        return
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        yield info(
            "evaluate-nothing",
            f"training.{name}",
            "it has no effect: nothing is held out",
            "set data.held_out_fraction above 0, or name a set: data.evaluation.NAME=PATH",
        )
