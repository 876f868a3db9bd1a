"""Activations that a rank keeps for the backward pass, and how many micro-batches of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.config.enums import Accelerator, PipelineSchedule, RecomputePolicy
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.kernels import OURS, Kernels
from orchestrator.planning.layers import (
    document_mask_bytes,
    embedding_activation_bytes,
    final_norm_activation_bytes,
    keeps_document_masks,
    kept_input_bytes,
    layer_activation_bytes,
    layer_working_bytes,
    logits_bytes,
)
from orchestrator.planning.memory.host import pinned_bytes
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.planning.partition import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward pass of one rank."""

    micro_batch: Size
    sequence_length: Size
    dtype_bytes: int
    tensor_parallel_size: Size
    sequence_parallel: bool = False
    recompute: RecomputePolicy
    recompute_interval: int = 1
    """Layers that are recomputed together (policy every_k_layers)."""
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    accelerator: Accelerator
    kernels: Kernels = OURS

    @property
    def sizes(self) -> dict[str, Any]:
        """What every count of ``layers.py`` asks for."""
        return {
            "micro_batch": self.micro_batch,
            "sequence_length": self.sequence_length,
            "dtype_bytes": self.dtype_bytes,
            "tensor_parallel_size": self.tensor_parallel_size,
            "sequence_parallel": self.sequence_parallel,
        }

    @property
    def sizes_and_kernels(self) -> dict[str, Any]:
        """``sizes``, and how the operations are computed."""
        return {**self.sizes, "kernels": self.kernels}

    @property
    def keeps_inputs(self) -> bool:
        """Whether whole layers are recomputed from their inputs."""
        return self.recompute in (RecomputePolicy.full, RecomputePolicy.every_k_layers)

    @property
    def group_size(self) -> int:
        """Layers of one input that is kept."""
        return self.recompute_interval if self.recompute is RecomputePolicy.every_k_layers else 1


def in_flight_micro_batches(
    stage: Size, *, pipeline_parallel_size: Size, micro_batches: Size, schedule: PipelineSchedule, way_back: bool = False
) -> Size:
    """Micro-batches whose activations one stage of pipeline coordinate ``stage`` (from 0) holds at once.

    1F1B: as many as stages lie behind it, itself included (Narayanan et al., 2019); GPipe: all (Huang et al., 2019).
    DualPipeV has two stages a coordinate, that on the way out and that on the way back: 2 pp - stage on the way out and
    stage + 1 on the way back, counted in DeepSpeed's ``schedule.py:DualPipeVSchedule``.
    """
    if schedule is PipelineSchedule.gpipe:
        return micro_batches + 0 * stage
    if schedule is PipelineSchedule.dual_pipe_v:
        return smaller(stage + 1 if way_back else 2 * pipeline_parallel_size - stage, micro_batches)
    return smaller(pipeline_parallel_size - stage, micro_batches)


def stage_activation_bytes(spec: ModelSpec, stage: Stage, passed: Pass, *, in_flight: Size) -> Size:
    """Saved activations of the layers of ``stage`` and of the model's ends it holds, for all micro-batches in flight.

    Every stage makes its own rotary tables and masks. Inputs that are kept in host memory are not counted.
    """
    if passed.keeps_inputs:
        total = 0 if passed.cpu_checkpointing else _num_groups(stage, passed) * _kept_input(spec, passed)
    else:
        total = stage.num_layers * layer_activation_bytes(
            spec, **passed.sizes_and_kernels, recompute=passed.recompute, accelerator=passed.accelerator
        )
    if stage.has_embedding or stage.num_layers > 0:
        total = total + embedding_activation_bytes(
            spec, **passed.sizes_and_kernels, recompute=passed.recompute, accelerator=passed.accelerator
        )
    if stage.has_final_norm:
        total = total + final_norm_activation_bytes(spec, **passed.sizes_and_kernels)
    return total * in_flight + (latest_mask_bytes(spec, passed) if stage.num_layers > 0 else 0)


def latest_mask_bytes(spec: ModelSpec, passed: Pass) -> Size:
    """Masks of the latest micro-batch's documents, where autograd does not keep those of all in flight."""
    keeps = keeps_document_masks(
        spec,
        dtype_bytes=passed.dtype_bytes,
        recompute=passed.recompute,
        accelerator=passed.accelerator,
        kernels=passed.kernels,
    )
    masks = document_mask_bytes(
        spec,
        micro_batch=passed.micro_batch,
        sequence_length=passed.sequence_length,
        dtype_bytes=passed.dtype_bytes,
        kernels=passed.kernels,
    )
    return masks * (not keeps)


def host_activation_bytes(spec: ModelSpec, stage: Stage, passed: Pass, *, in_flight: Size) -> Size:
    """Inputs of the recomputed layers of ``stage`` that are kept in host memory, for all micro-batches in flight.

    Each is a block of its own, and page-locked when it comes from a GPU.
    """
    if not (passed.keeps_inputs and passed.cpu_checkpointing):
        return 0 * passed.micro_batch
    block = _kept_input(spec, passed)
    if passed.accelerator is not Accelerator.cpu:
        block = pinned_bytes(block)
    return _num_groups(stage, passed) * block * in_flight


def stage_working_bytes(spec: ModelSpec, stage: Stage, passed: Pass) -> Size:
    """Beyond the saved activations, while the backward pass is in a layer (with recomputation: that of its group as well)."""
    if stage.num_layers == 0:
        return 0 * passed.micro_batch
    return layer_working_bytes(
        spec,
        **passed.sizes_and_kernels,
        recompute=passed.recompute,
        recompute_interval=min(passed.group_size, stage.num_layers),
        input_moved=passed.keeps_inputs and (passed.partition_activations or passed.cpu_checkpointing),
        accelerator=passed.accelerator,
    )


def stage_logits_bytes(spec: ModelSpec, stage: Stage, passed: Pass) -> Size:
    """Logits and the fp32 chunk of the loss, on the stage that holds the head; one micro-batch at a time."""
    if not stage.has_head:
        return 0 * passed.micro_batch
    return logits_bytes(spec, **passed.sizes_and_kernels)


def pipeline_buffer_bytes(spec: ModelSpec, passed: Pass, *, in_flight: Size, pipeline_parallel_size: Size) -> Size:
    """What DeepSpeed's pipeline engine keeps between stages; nothing without a pipeline.

    The output of each micro-batch in flight, for at least two (``schedule.py:TrainSchedule.num_pipe_buffers``), one
    receive buffer and one gradient buffer, each micro-batch x sequence x hidden, a shard of it with sequence parallelism.
    Positions within documents are received and kept beside them; the embedding counts their bytes.
    """
    boundary = passed.micro_batch * passed.sequence_length * spec.hidden_size * passed.dtype_bytes
    if passed.sequence_parallel:
        boundary = ceil_divide(boundary, passed.tensor_parallel_size)
    return boundary * (larger(in_flight, 2) + 2) * (pipeline_parallel_size > 1)


def _num_groups(stage: Stage, passed: Pass) -> int:
    """Groups of layers of ``stage`` that are recomputed together, each from one input."""
    return -(-stage.num_layers // passed.group_size)


def _kept_input(spec: ModelSpec, passed: Pass) -> Size:
    """The input of one group of one micro-batch."""
    return kept_input_bytes(spec, **passed.sizes, partition_activations=passed.partition_activations)
