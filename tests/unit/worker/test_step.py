"""Steps that are skipped one after the other."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import Precision
from orchestrator.config.schema import PrecisionConfig
from orchestrator.worker.metrics import StepOutcome
from orchestrator.worker.step import MOST_SKIPPED, SkippedSteps


def outcome(*, skipped: bool) -> StepOutcome:
    return StepOutcome(loss=4.0, loss_tokens=8, learning_rate=1e-3, gradient_norm=1.0, loss_scale=None, skipped=skipped)


@pytest.mark.parametrize("precision", [{"dtype": Precision.bf16}, {"dtype": Precision.fp16, "loss_scale": 1024.0}])
def test_a_training_that_only_skips_ends_where_no_loss_scale_falls(precision):
    steps = SkippedSteps(precision=PrecisionConfig(**precision))
    for step in (*range(1, MOST_SKIPPED), MOST_SKIPPED):
        steps.count(outcome(skipped=step < MOST_SKIPPED), step=step)
    for step in range(1, MOST_SKIPPED):
        steps.count(outcome(skipped=True), step=step)
    with pytest.raises(FloatingPointError, match=f"last {MOST_SKIPPED} steps, up to step 77, .* the training has diverged"):
        steps.count(outcome(skipped=True), step=77)


def test_a_dynamic_loss_scale_may_fall_for_longer():
    steps = SkippedSteps(precision=PrecisionConfig(dtype=Precision.fp16, loss_scale=0))
    for step in range(2 * MOST_SKIPPED):
        steps.count(outcome(skipped=True), step=step)
