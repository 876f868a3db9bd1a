"""One optimizer step: the micro-batches of this rank, forward, backward, and DeepSpeed's update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.data.batches import Batch
from orchestrator.worker.loss import cross_entropy_sum, global_token_count, micro_batch_scale
from orchestrator.worker.metrics import StepOutcome, diverged


def training_step(engine: Any, batches: Sequence[Batch], layout: ParallelLayout) -> StepOutcome:
    """Train on this rank's micro-batches of one step; every rank calls it and gets the same outcome.

    Raises:
        FloatingPointError: the training has diverged.
    """
    inputs = [torch.from_numpy(batch.input_ids).to(engine.device) for batch in batches]
    labels = [torch.from_numpy(batch.labels).to(engine.device) for batch in batches]
    token_count = global_token_count(labels, engine.data_parallel_group)
    scale = micro_batch_scale(token_count, layout)
    learning_rate = float(engine.get_lr()[0])
    loss_scale = _loss_scale(engine)
    skipped_before = engine.skipped_steps
    loss_sum = torch.zeros((), dtype=torch.float64, device=engine.device)
    norm_before_clipping: Tensor | None = None
    for input_ids, micro_labels in zip(inputs, labels, strict=True):
        micro_sum = _forward(engine, input_ids, micro_labels)
        engine.backward(micro_sum * scale)
        if _is_unwrapped(engine) and engine.is_gradient_accumulation_boundary():
            norm_before_clipping = _plain_gradient_norm(engine)
        engine.step()
        loss_sum += micro_sum.detach()
    torch.distributed.all_reduce(loss_sum, group=engine.data_parallel_group)
    norm = engine.get_global_grad_norm() if norm_before_clipping is None else norm_before_clipping
    outcome = StepOutcome(
        loss=float(loss_sum) / max(1, int(token_count)),
        loss_tokens=int(token_count),
        learning_rate=learning_rate,
        gradient_norm=float(norm),
        loss_scale=loss_scale,
        skipped=engine.skipped_steps > skipped_before,
    )
    _require_finite(outcome, step=engine.global_steps)
    return outcome


def _forward(engine: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The summed loss of a micro-batch. A function of its own, so that the logits live no longer than their graph."""
    return cross_entropy_sum(engine(input_ids=input_ids, use_cache=False).logits, labels)


def _is_unwrapped(engine: Any) -> bool:
    """Whether the engine runs the plain optimizer (fp32, stage 0), whose clipping does not keep the norm."""
    return engine.zero_optimization_stage() == 0 and not (engine.fp16_enabled() or engine.bfloat16_enabled())


def _plain_gradient_norm(engine: Any) -> Tensor:
    gradients = [parameter.grad for parameter in engine.module.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


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
