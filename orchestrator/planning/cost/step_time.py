"""How long an optimizer step takes, and what of it each part costs.

The step is the pipeline with its bubble, the reductions that are left after it, the update, and fixed overhead. Every component
says how many seconds it takes, how many of them make the step longer, and why. Work grows with kinds of stages, not with ranks;
no GPU and no measurement is needed. The README says what is modelled and how far it is from published steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from orchestrator.planning.cost.components import Component, step_components
from orchestrator.planning.cost.pipeline import pipeline_seconds
from orchestrator.planning.cost.stages import Common, StageSeconds, common_to_stages, stage_seconds, work_and_transfer
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.cost.work import PassWork
from orchestrator.planning.layers import model_flops_per_token
from orchestrator.planning.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The step in the order it runs."""

    common: Common
    work: PassWork
    coordinates: tuple[tuple[StageSeconds, ...], ...]
    """The chunks of every pipeline coordinate."""
    busy_seconds: tuple[float, ...]
    """Of each coordinate, in all passes."""
    pipeline_seconds: float
    reduction_seconds: float
    """From the end of the pipeline until all gradients are reduced."""
    update_seconds: float

    @property
    def seconds(self) -> float:
        """The step."""
        overhead = self.common.speeds.step_overhead
        return self.pipeline_seconds + self.reduction_seconds + self.update_seconds + overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of one optimizer step."""

    step_seconds: float
    tokens_per_second_per_device: float
    model_flops_utilization: float
    """Against the device's dense peak in the model's format, recomputation not counted."""
    bubble_fraction: float
    """Share of the pipeline's time in which a stage, on average, waits for others."""
    step: TrainingStep = field(repr=False)
    parts: StepParts = field(repr=False)

    @property
    def components(self) -> Mapping[str, Component]:
        """What the step is made of on the stage that has most to do; the exposed seconds add up to the step."""
        return step_components(self.step, self.parts)

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
    """The time of ``step`` with its layers cut as in ``partition``; ``missing_facts`` of its cluster must be None."""
    parts = step_parts(step, partition)
    tokens_per_second = step.tokens / step.num_devices / parts.seconds
    flops = float(model_flops_per_token(step.spec, step.passed.sequence_length))
    stages = len(parts.busy_seconds)
    return StepTime(
        step_seconds=parts.seconds,
        tokens_per_second_per_device=tokens_per_second,
        model_flops_utilization=tokens_per_second * flops / parts.common.speeds.peak_flops,
        bubble_fraction=max(0.0, 1 - sum(parts.busy_seconds) / (stages * parts.pipeline_seconds)),
        step=step,
        parts=parts,
    )


def step_parts(step: TrainingStep, partition: Partition) -> StepParts:
    """The step in the order it runs. Stages of one kind are computed once."""
    common = common_to_stages(step)
    work, transfer = work_and_transfer(step, common)
    known: dict[Any, _Coordinate] = {}
    coordinates = []
    for index in range(partition.num_coordinates):
        held = partition.held_by(index)
        kind = tuple(stage.kind for stage in held)
        if kind not in known:
            known[kind] = _coordinate(stage_seconds(common, work, transfer, held))
        coordinates.append(known[kind])
    forward, backward = [each.forward for each in coordinates], [each.backward for each in coordinates]
    return StepParts(
        common=common,
        work=work,
        coordinates=tuple(each.chunks for each in coordinates),
        busy_seconds=tuple(step.micro_batches * (sum(each.forward) + sum(each.backward)) for each in coordinates),
        pipeline_seconds=pipeline_seconds(step.schedule, forward, backward, micro_batches=step.micro_batches),
        reduction_seconds=_reduction_seconds(coordinates),
        update_seconds=max(each.update for each in known.values()),
    )


class _Coordinate(NamedTuple):
    """A kind of pipeline coordinate: its chunks, and their seconds as numbers."""

    chunks: tuple[StageSeconds, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    after_backward: float
    update: float


def _coordinate(chunks: tuple[StageSeconds, ...]) -> _Coordinate:
    return _Coordinate(
        chunks=chunks,
        forward=tuple(float(chunk.passes.forward) for chunk in chunks),
        backward=tuple(float(chunk.passes.backward) for chunk in chunks),
        after_backward=float(sum(chunk.passes.after_backward for chunk in chunks)),
        update=float(sum(chunk.exchange.update for chunk in chunks)),
    )


def _reduction_seconds(coordinates: Sequence[_Coordinate]) -> float:
    """What the reductions add to the pipeline: a stage has its last gradients before those in front of it."""
    earlier = accumulate((each.backward[0] for each in coordinates), initial=0.0)
    left = [each.after_backward - before for each, before in zip(coordinates, earlier, strict=False)]
    return max(0.0, *left)
