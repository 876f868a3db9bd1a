"""Activations that a rank keeps for the backward pass, and how many micro-batches of them at once."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.schema import Accelerator, PipelineSchedule, RecomputePolicy
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.layers import (
    embedding_activation_bytes,
    final_norm_activation_bytes,
    layer_activation_bytes,
    layer_working_bytes,
    logits_bytes,
)
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size
from orchestrator.planning.partition import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward pass of one rank."""

    micro_batch: Size
    sequence_length: Size
    dtype_bytes: int
    tensor_parallel_size: Size
    recompute: RecomputePolicy
    accelerator: Accelerator


def in_flight_micro_batches(
    stage: Size, *, pipeline_parallel_size: Size, micro_batches: Size, schedule: PipelineSchedule
) -> Size:
    """Micro-batches whose activations stage ``stage`` (from 0) holds at once.

    1F1B: as many as stages lie behind it, itself included (Narayanan et al., 2019); GPipe: all (Huang et al., 2019).
    """
    if schedule is PipelineSchedule.gpipe:
        return micro_batches + 0 * stage
    return smaller(pipeline_parallel_size - stage, micro_batches)


def stage_activation_bytes(spec: ModelSpec, stage: Stage, passed: Pass, *, in_flight: Size) -> Size:
    """Saved activations of the layers of ``stage`` and of the model's ends it holds, for all micro-batches in flight."""
    layer = layer_activation_bytes(
        spec,
        micro_batch=passed.micro_batch,
        sequence_length=passed.sequence_length,
        dtype_bytes=passed.dtype_bytes,
        tensor_parallel_size=passed.tensor_parallel_size,
        recompute=passed.recompute,
        accelerator=passed.accelerator,
    )
    total = stage.num_layers * layer
    if stage.has_embedding:
        total = total + embedding_activation_bytes(
            spec,
            micro_batch=passed.micro_batch,
            sequence_length=passed.sequence_length,
            dtype_bytes=passed.dtype_bytes,
            recompute=passed.recompute,
            accelerator=passed.accelerator,
        )
    if stage.has_head:
        total = total + final_norm_activation_bytes(
            spec, micro_batch=passed.micro_batch, sequence_length=passed.sequence_length, dtype_bytes=passed.dtype_bytes
        )
    return total * in_flight


def stage_working_bytes(spec: ModelSpec, passed: Pass) -> Size:
    """Beyond the saved activations, while the backward pass is in a layer (with recomputation: that layer's own as well)."""
    return layer_working_bytes(
        spec,
        micro_batch=passed.micro_batch,
        sequence_length=passed.sequence_length,
        dtype_bytes=passed.dtype_bytes,
        tensor_parallel_size=passed.tensor_parallel_size,
        recompute=passed.recompute,
        accelerator=passed.accelerator,
    )


def stage_logits_bytes(spec: ModelSpec, stage: Stage, passed: Pass) -> Size:
    """Logits, their fp32 copy and their gradient, on the stage that holds the head; one micro-batch at a time."""
    if not stage.has_head:
        return 0 * passed.micro_batch
    return logits_bytes(
        spec,
        micro_batch=passed.micro_batch,
        sequence_length=passed.sequence_length,
        dtype_bytes=passed.dtype_bytes,
        tensor_parallel_size=passed.tensor_parallel_size,
    )


def pipeline_buffer_bytes(spec: ModelSpec, passed: Pass, *, in_flight: Size, pipeline_parallel_size: Size) -> Size:
    """What DeepSpeed's pipeline engine keeps between stages; nothing without a pipeline.

    The output of each micro-batch in flight, for at least two (``schedule.py:TrainSchedule.num_pipe_buffers``), one
    receive buffer and one gradient buffer, each micro-batch x sequence x hidden.
    """
    boundary = passed.micro_batch * passed.sequence_length * spec.hidden_size * passed.dtype_bytes
    return boundary * (larger(in_flight, 2) + 2) * (pipeline_parallel_size > 1)
