"""How long an optimizer step takes, and what of it each part costs.

The step is the pipeline with its bubble, what data parallelism adds outside of it, the optimizer, and fixed overhead. Every
component says how many seconds it takes, how many of them the step is longer for it, and why. Work grows with kinds of stages,
not with ranks; no GPU and no measurement is needed. The limits are in the README.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.planning.cost.pipeline import pipeline_seconds
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.cost.stages import StageSeconds, stage_seconds, surroundings_of
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.layers import model_flops_per_token
from orchestrator.planning.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of the step on the ranks that set its pace."""

    seconds: float
    """What it takes."""
    exposed_seconds: float
    """What the step is longer for it; the rest runs beside something else. These add up to the step."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``time.components``."""
        return {"seconds": self.seconds, "exposed_seconds": self.exposed_seconds, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of one optimizer step."""

    step_seconds: float
    tokens_per_second_per_device: float
    model_flops_utilization: float
    """Against the device's dense peak in the model's format, recomputation not counted."""
    bubble_fraction: float
    """Share of the pipeline's time in which the mean stage computes nothing."""
    components: Mapping[str, Component]

    def to_dict(self) -> dict[str, Any]:
        """The ``time`` object of ``output=json``."""
        return {
            "step_seconds": self.step_seconds,
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "model_flops_utilization": self.model_flops_utilization,
            "bubble_fraction": self.bubble_fraction,
            "components": {name: component.to_dict() for name, component in self.components.items()},
        }


def step_time(step: TrainingStep, partition: Partition) -> StepTime:
    """The time of ``step`` with its layers cut as ``partition``. ``speeds.missing_facts`` must be None for its cluster."""
    around = surroundings_of(step)
    known: dict[Any, tuple[StageSeconds, ...]] = {}
    stages = []
    for coordinate in range(partition.num_coordinates):
        held = partition.held_by(coordinate)
        kind = tuple(stage.kind for stage in held)
        if kind not in known:
            known[kind] = stage_seconds(around, held)
        stages.append(known[kind])
    forward = [[float(chunk.forward) for chunk in chunks] for chunks in stages]
    backward = [[float(chunk.backward) for chunk in chunks] for chunks in stages]
    passes = pipeline_seconds(step.schedule, forward, backward, micro_batches=step.micro_batches)
    busy = [step.micro_batches * (sum(ahead) + sum(back)) for ahead, back in zip(forward, backward, strict=True)]
    earlier = np.cumsum([0.0, *[back[0] for back in backward[:-1]]])
    reduction = max(0.0, max(float(chunks[0].after_backward) - gone for chunks, gone in zip(stages, earlier, strict=True)))
    slowest = max(stages, key=lambda chunks: float(chunks[0].update))
    update = float(slowest[0].update)
    seconds = passes + reduction + update + around.speeds.step_overhead
    busiest = stages[int(np.argmax(busy))]
    components = _components(step, busiest, slowest[0], reduction=reduction, bubble=passes - max(busy), speeds=around.speeds)
    tokens_per_second = step.tokens / step.num_devices / seconds
    flops = float(model_flops_per_token(step.spec, step.passed.sequence_length))
    return StepTime(
        step_seconds=seconds,
        tokens_per_second_per_device=tokens_per_second,
        model_flops_utilization=tokens_per_second * flops / around.speeds.peak_flops,
        bubble_fraction=1 - sum(busy) / (len(busy) * passes),
        components=components,
    )


def _components(
    step: TrainingStep,
    chunks: tuple[StageSeconds, ...],
    update: StageSeconds,
    *,
    reduction: float,
    bubble: float,
    speeds: Speeds,
) -> dict[str, Component]:
    rounds = step.micro_batches

    def over(*names: str) -> float:
        return rounds * sum(float(getattr(chunk, name)) for chunk in chunks for name in names)

    compute, recomputed = over("compute_forward", "compute_backward"), over("recomputed")
    tensor, sends, copies = (
        over("tensor_forward", "tensor_backward"),
        over("sends_forward", "sends_backward"),
        2 * over("host_copies"),
    )
    in_passes = over("forward", "backward") - compute - recomputed - tensor - sends - copies
    traffic = rounds * sum(
        float(chunk.traffic.forward_gather + chunk.traffic.backward_gather + chunk.traffic.backward_reduction)
        for chunk in chunks
    )
    parts = update.optimizer
    made = {
        "compute": Component(seconds=compute, exposed_seconds=compute, reason="forward and backward of the busiest stage"),
        "recomputation": Component(seconds=recomputed, exposed_seconds=recomputed, reason="forward passes done again"),
        "tensor_parallel": Component(
            seconds=tensor, exposed_seconds=tensor, reason="exposed: the next operation needs the result"
        ),
        "pipeline_transfers": Component(
            seconds=sends, exposed_seconds=sends, reason="exposed: DeepSpeed's sends keep the stage busy"
        ),
        "pipeline_bubble": Component(seconds=bubble, exposed_seconds=bubble, reason="the busiest stage waits"),
        "activation_copies": Component(seconds=copies, exposed_seconds=copies, reason="kept inputs to the host and back"),
        "zero_traffic": Component(seconds=traffic, exposed_seconds=in_passes, reason="of every micro-batch"),
        "gradient_reduction": Component(
            seconds=float(chunks[0].after_backward), exposed_seconds=reduction, reason="after the last backward pass"
        ),
        "optimizer": Component(
            seconds=float(parts.device), exposed_seconds=float(parts.device), reason="states over memory bandwidth"
        ),
        "processor_optimizer": Component(
            seconds=float(parts.processors), exposed_seconds=float(parts.processors), reason="the device waits"
        ),
        "host_copies": Component(
            seconds=float(parts.copies), exposed_seconds=float(parts.copies), reason="gradients down, parameters up"
        ),
        "nvme_reads": Component(
            seconds=float(parts.disk_reads), exposed_seconds=float(parts.disk_reads), reason="optimizer states"
        ),
        "nvme_writes": Component(
            seconds=float(parts.disk_writes), exposed_seconds=float(parts.disk_writes), reason="optimizer states"
        ),
        "parameter_gather": Component(
            seconds=float(update.traffic.parameter_gather),
            exposed_seconds=float(update.traffic.parameter_gather),
            reason="exposed: the next step needs the parameters",
        ),
        "overhead": Component(seconds=speeds.step_overhead, exposed_seconds=speeds.step_overhead, reason="every step"),
    }
    return {name: component for name, component in made.items() if component.seconds > 0}
