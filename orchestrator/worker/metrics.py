"""The numbers of a training step: what is logged, and the line the user sees."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.planning.cluster_spec import peak_flops
from orchestrator.planning.layers import model_flops_per_token
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one optimizer step did.

    ``loss`` is the mean over the ``loss_tokens`` counting tokens of the global batch, ``gradient_norm`` is that before
    clipping, ``loss_scale`` is None but for fp16. A ``skipped`` step overflowed and left the weights alone.
    """

    loss: float
    loss_tokens: int
    learning_rate: float
    gradient_norm: float
    loss_scale: float | None
    skipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What turns seconds into rates: tokens of a step, FLOPs of a token, and the device's peak (None: unknown)."""

    tokens_per_step: int
    flops_per_token: float
    num_devices: int
    peak_flops: float | None

    def rates(self, step_seconds: float) -> dict[str, float]:
        """Tokens/s over all devices, TFLOP/s of one device, and model FLOPs utilization if the peak is known."""
        tokens_per_second = self.tokens_per_step / step_seconds
        flops = tokens_per_second * self.flops_per_token / self.num_devices
        rates = {"tokens_per_second": tokens_per_second, "tflops_per_device": flops / 1e12}
        return rates if self.peak_flops is None else {**rates, "mfu": flops / self.peak_flops}


def throughput_of(config: RunConfig, spec: ModelSpec, layout: ParallelLayout) -> Throughput:
    """The throughput constants of a run."""
    return Throughput(
        tokens_per_step=layout.train_batch_size * config.data.sequence_length,
        flops_per_token=float(model_flops_per_token(spec, config.data.sequence_length)),
        num_devices=layout.world_size,
        peak_flops=peak_flops(config.cluster, config.cluster.devices_per_host).get(config.precision.dtype),
    )


def train_entry(
    step: int,
    outcome: StepOutcome,
    *,
    step_seconds: float,
    rates: Mapping[str, float],
    memory_bytes: int,
    consumed_samples: int,
    bubble_fraction: float | None,
) -> dict[str, Any]:
    """A step as ``metrics.jsonl`` keeps it; ``bubble_fraction`` is None without a pipeline."""
    entry: dict[str, Any] = {
        "kind": "train",
        "step": step,
        "loss": outcome.loss,
        "loss_tokens": outcome.loss_tokens,
        "lr": outcome.learning_rate,
        "grad_norm": outcome.gradient_norm,
    }
    if outcome.loss_scale is not None:
        entry["loss_scale"] = outcome.loss_scale
    if outcome.loss_scale is not None or outcome.skipped:
        entry["skipped"] = outcome.skipped
    bubble = {} if bubble_fraction is None else {"bubble_fraction": bubble_fraction}
    return {
        **entry,
        "step_seconds": step_seconds,
        **rates,
        **bubble,
        "memory_bytes": memory_bytes,
        "consumed_samples": consumed_samples,
        "time": time.time(),
    }


def step_line(step: int, max_steps: int, outcome: StepOutcome, *, step_seconds: float, tokens_per_second: float) -> str:
    """A step as the user reads it."""
    scale = "" if outcome.loss_scale is None else f"  loss scale {outcome.loss_scale:g}"
    skipped = "  skipped: gradients overflowed" if outcome.skipped else ""
    return (
        f"step {step}/{max_steps}  loss {outcome.loss:.4f}  lr {outcome.learning_rate:.1e}  "
        f"grad norm {outcome.gradient_norm:.2f}  {step_seconds:.2f} s  {format_count(tokens_per_second)} tokens/s"
        f"{scale}{skipped}"
    )


def evaluate_entry(step: int, main: float | None, named: Mapping[str, float]) -> dict[str, Any]:
    """An evaluation as ``metrics.jsonl`` keeps it: the held-out loss, and those of further sets under their names."""
    losses = {"": main, **{f"/{name}": loss for name, loss in named.items()}}
    numbers = {
        f"{quantity}{name}": value
        for name, loss in losses.items()
        if loss is not None
        for quantity, value in (("held_out_loss", loss), ("perplexity", perplexity(loss)))
    }
    return {"kind": "evaluate", "step": step, **numbers, "time": time.time()}


def evaluate_line(step: int, main: float | None, named: Mapping[str, float], *, duration: str) -> str:
    """An evaluation as the user reads it."""
    parts = [] if main is None else [f"held-out loss {main:.4f}  perplexity {perplexity(main):.2f}"]
    parts += [f"{name} {loss:.4f}" for name, loss in named.items()]
    return f"step {step}  {'  '.join(parts)}  {duration}"


def perplexity(loss: float) -> float:
    """``exp(loss)``; infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 700 else math.inf


def diverged(name: str, value: float, *, step: int) -> FloatingPointError:
    """What ends a training whose numbers are no longer finite."""
    return FloatingPointError(
        f"the {name} is {value} at step {step}: the training has diverged; "
        "lower optimizer.lr, lengthen lr_scheduler.warmup_steps, or set training.gradient_clipping"
    )


def all_skipped(steps: int, *, step: int) -> FloatingPointError:
    """What ends a training of which step after step is skipped."""
    return FloatingPointError(
        f"the gradients of the last {steps} steps, up to step {step}, were not finite and changed no weight: the training has "
        "diverged; start from finite weights, lower optimizer.lr, or with a fixed loss scale lower precision.loss_scale"
    )
