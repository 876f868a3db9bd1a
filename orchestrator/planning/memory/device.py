"""Peak memory of the ranks of one pipeline coordinate, by phase of an optimizer step and by component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from orchestrator.deepspeed_config.settings import DeepSpeedSettings, OptimizerWrapper
from orchestrator.planning.broadcast import larger
from orchestrator.planning.memory.activations import PassBytes
from orchestrator.planning.memory.buffers import (
    gathered_parameter_bytes,
    gradient_copy_bytes,
    optimizer_step_bytes,
    reduce_bucket_bytes,
    reduction_copy_bytes,
    workspace_bytes,
)
from orchestrator.planning.memory.shape import RankShape
from orchestrator.planning.memory.states import (
    device_states,
    resident_gradient_bytes,
    step_gradient_bytes,
    whole_gradient_bytes,
)
from orchestrator.planning.parameters import Size
from orchestrator.planning.partition import Stage
from orchestrator.units import DTYPE_BYTES


class Phase(StrEnum):
    """Moments at which memory can peak, in the order of a run."""

    start = "start"
    """After DeepSpeed has built its engine: what stays for good."""
    loss = "loss"
    """The end of the forward pass: every activation, and the logits."""
    backward = "backward"
    """The first layer's backward pass: every activation, the layer's own tensors, the first buckets."""
    reduction = "reduction"
    """The end of the last backward pass: no activations, whole gradients and their copies on the way to other ranks."""
    step = "step"
    """The optimizer's update."""
    save = "save"
    """A checkpoint is written: what stays for good, and at ZeRO-3 one whole parameter for the 16-bit copy of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """What one rank has to do in a step. Micro-batch counts may be numpy arrays."""

    held: tuple[Stage, ...]
    """The stages it holds: one, or two with DualPipeV."""
    shape: RankShape
    in_flight: tuple[Size, ...]
    """Micro-batches whose activations each of them keeps at once."""
    data_parallel_size: Size
    pipeline_parallel_size: int
    accumulates: bool
    """Whether a step has more than one micro-batch."""


PhaseComponents: TypeAlias = Mapping[Phase, Mapping[str, Size]]


def phase_components(settings: DeepSpeedSettings, load: StageLoad, of_pass: PassBytes) -> PhaseComponents:
    """Bytes of each component in each phase; what a component does not need in a phase is left out there."""
    return with_passes(state_components(settings, load), pass_components(load, of_pass))


def with_passes(states: PhaseComponents, passes: PhaseComponents) -> PhaseComponents:
    """``state_components`` and ``pass_components`` together."""
    return {phase: {**parts, **passes[phase]} if phase in passes else parts for phase, parts in states.items()}


def state_components(settings: DeepSpeedSettings, load: StageLoad) -> PhaseComponents:
    """The components that the size of a pass does not change: they depend on the stage, the data-parallel size and ZeRO."""
    shape, dp = load.shape, load.data_parallel_size
    trained = shape.trainable_parameters
    states = device_states(
        settings,
        num_parameters=shape.parameters,
        num_trainable=trained,
        num_muon=shape.muon_parameters,
        data_parallel_size=dp,
    )
    permanent = {
        "parameters": states.parameters,
        "optimizer_states": states.optimizer_states,
        "workspace": workspace_bytes(settings),
    }
    bucket = reduce_bucket_bytes(settings, shape, pipeline=load.pipeline_parallel_size > 1)
    kept_bucket = bucket if settings.sharding_stage >= 3 else 0
    copied = reduction_copy_bytes(settings, shape)
    gathered = {"gathered_parameters": gathered_parameter_bytes(settings, shape, data_parallel_size=dp)}
    copies = {"gradient_copies": gradient_copy_bytes(settings, shape, data_parallel_size=dp, accumulates=load.accumulates)}
    resident = resident_gradient_bytes(settings, num_parameters=trained, data_parallel_size=dp, accumulates=load.accumulates)
    in_passes = {**permanent, **gathered, "gradients": resident}
    keeps_gradients = settings.optimizer_wrapper in (OptimizerWrapper.bf16, OptimizerWrapper.zero3)
    standing = {**permanent, "gradients": states.gradients if keeps_gradients else 0, "reduce_buckets": kept_bucket}
    whole = shape.largest_parameter * DTYPE_BYTES[settings.dtype] if settings.sharding_stage >= 3 else 0
    return {
        Phase.start: standing,
        Phase.loss: {**in_passes, "reduce_buckets": kept_bucket},
        Phase.backward: {**in_passes, **copies, "reduce_buckets": bucket + (copied if settings.zero_stage >= 2 else 0)},
        Phase.reduction: {
            **permanent,
            **gathered,
            **copies,
            "gradients": whole_gradient_bytes(settings, num_parameters=trained, data_parallel_size=dp),
            "reduce_buckets": bucket + copied,
        },
        Phase.step: {
            **permanent,
            "gradients": step_gradient_bytes(settings, num_parameters=trained, data_parallel_size=dp),
            "reduce_buckets": kept_bucket,
            "optimizer_step": optimizer_step_bytes(settings, shape, data_parallel_size=dp),
        },
        Phase.save: {**standing, "gathered_parameters": whole},
    }


def pass_components(load: StageLoad, of_pass: PassBytes) -> PhaseComponents:
    """The components that go with the micro-batches in flight, in the two phases that have them."""
    kept = {
        "activations": sum(
            of_pass.activations(stage, in_flight=held) for stage, held in zip(load.held, load.in_flight, strict=True)
        ),
        "pipeline_buffers": of_pass.pipeline_buffers(
            in_flight=sum(load.in_flight), pipeline_parallel_size=load.pipeline_parallel_size
        ),
    }
    return {
        Phase.loss: {**kept, "logits": sum(of_pass.logits(stage) for stage in load.held)},
        Phase.backward: {**kept, "layer_working_memory": larger(*(of_pass.working(stage) for stage in load.held))},
    }
