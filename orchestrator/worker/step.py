"""One optimizer step: the micro-batches of this rank, forward, backward, and DeepSpeed's update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from deepspeed.runtime.pipe.engine import TRAIN_BATCH_TIMER, PipelineEngine
from torch import Tensor

from orchestrator.config.enums import Precision
from orchestrator.config.schema import PrecisionConfig
from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.data.batches import Batch
from orchestrator.worker.gradient_norm import is_unwrapped
from orchestrator.worker.loss import global_token_count, micro_batch_scale
from orchestrator.worker.metrics import StepOutcome, all_skipped, diverged

MOST_SKIPPED = 20
"""Steps that may be skipped one after the other where no loss scale falls: a bad batch is over sooner."""


@dataclass(slots=True, kw_only=True)
class SkippedSteps:
    """Counts the steps that were skipped one after the other, and ends a training that would learn nothing to its end.

    With a dynamic loss scale DeepSpeed does so itself, when it has come to the smallest.
    """

    precision: PrecisionConfig
    in_a_row: int = 0

    def count(self, outcome: StepOutcome, *, step: int) -> None:
        """Count the outcome of step number ``step``.

        Raises:
            FloatingPointError: too many steps were skipped.
        """
        self.in_a_row = self.in_a_row + 1 if outcome.skipped else 0
        is_scale_dynamic = self.precision.dtype is Precision.fp16 and self.precision.loss_scale == 0
        if self.in_a_row >= MOST_SKIPPED and not is_scale_dynamic:
            raise all_skipped(self.in_a_row, step=step)


def training_step(engine: Any, batches: Sequence[Batch], layout: ParallelLayout) -> StepOutcome:
    """Train on this rank's micro-batches of one step; every rank calls it and gets the same outcome.

    Raises:
        FloatingPointError: the training has diverged.
    """
    inputs = [model_inputs(batch, engine.device) for batch in batches]
    labels = [torch.from_numpy(batch.labels).to(engine.device) for batch in batches]
    token_count = global_token_count(labels, engine.data_parallel_group)
    engine.module.loss_fn.scale = micro_batch_scale(token_count, layout)
    learning_rate = float(engine.get_lr()[0])
    loss_scale = _loss_scale(engine)
    skipped_before = engine.skipped_steps
    take = _pipeline_passes if isinstance(engine, PipelineEngine) else _passes
    loss = take(engine, inputs, labels)
    norm = engine.plain_gradient_norm.value if is_unwrapped(engine) else engine.get_global_grad_norm()
    outcome = StepOutcome(
        loss=float(loss),
        loss_tokens=int(token_count),
        learning_rate=learning_rate,
        gradient_norm=float(norm),
        loss_scale=loss_scale,
        skipped=engine.skipped_steps > skipped_before,
    )
    _require_finite(outcome, step=engine.global_steps)
    return outcome


def model_inputs(batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
    """What a model takes of a micro-batch: its token ids, and their positions if attention starts anew at each document."""
    arrays = (batch.input_ids,) if batch.positions is None else (batch.input_ids, batch.positions)
    return tuple(torch.from_numpy(array).to(device) for array in arrays)


def pipeline_inputs(inputs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """``model_inputs`` as a pipeline's first stage takes them: one tensor by itself."""
    return inputs if len(inputs) > 1 else inputs[0]


def _passes(engine: Any, inputs: Sequence[tuple[Tensor, ...]], labels: Sequence[Tensor]) -> Tensor:
    """All micro-batches and the update; the mean loss over them and over the data-parallel ranks."""
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    for micro_inputs, micro_labels in zip(inputs, labels, strict=True):
        loss = engine.module.loss_fn(engine(*micro_inputs), micro_labels)
        engine.backward(loss)
        engine.step()
        total += loss.detach()
    torch.distributed.all_reduce(total, group=engine.data_parallel_group)
    return total / (len(inputs) * torch.distributed.get_world_size(engine.data_parallel_group))


def _pipeline_passes(engine: Any, inputs: Sequence[tuple[Tensor, ...]], labels: Sequence[Tensor]) -> Tensor:
    """The same through the pipeline's schedule, which ends in the update and tells every stage the loss."""
    loss: Tensor = engine.train_batch(iter(zip(map(pipeline_inputs, inputs), labels, strict=True)))
    # DeepSpeed keeps the time of every step until it prints one, which it never does here.
    engine.timers(TRAIN_BATCH_TIMER).reset()
    return loss


def _loss_scale(engine: Any) -> float | None:
    """The scale this step's loss is multiplied with; None but for fp16."""
    if not engine.fp16_enabled():
        return None
    optimizer = engine.optimizer
    owner = optimizer.loss_scale_config if hasattr(optimizer, "loss_scale_config") else optimizer
    return float(owner.cur_scale if hasattr(owner, "cur_scale") else owner.loss_scale)


def _require_finite(outcome: StepOutcome, *, step: int) -> None:
    """A skipped step excuses an infinite gradient, and in fp16 an infinite loss: a smaller loss scale may mend both."""
    excused = outcome.skipped and outcome.loss_scale is not None
    if not math.isfinite(outcome.loss) and not excused:
        raise diverged("loss", outcome.loss, step=step)
    if not math.isfinite(outcome.gradient_norm) and not outcome.skipped:
        raise diverged("gradient norm", outcome.gradient_norm, step=step)
