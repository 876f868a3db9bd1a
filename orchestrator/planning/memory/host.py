"""Host RAM of one rank: its process and everything offloaded from the device.

Page-locked blocks come from torch's caching host allocator, which rounds each up to a power of two; pageable blocks and
those that the disk swapper locks itself are not rounded. DeepSpeed's CPU accelerator pins nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from orchestrator.config.enums import OffloadDevice
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, OptimizerWrapper
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.memory.nvme import parameters_on_disk
from orchestrator.planning.memory.shape import RankShape
from orchestrator.planning.memory.states import (
    FP32_BYTES,
    MASTER_BYTES,
    device_optimizer_elements,
    mixes_gradient_formats,
    moment_bytes,
)
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.units import DTYPE_BYTES, GIB, MIB

PROCESS_BYTES = 3 * GIB
"""RAM of a worker on a GPU before it offloads anything: the interpreter, torch, CUDA and NCCL with their host buffers."""
LAUNCHER_BYTES = 700 * MIB
"""RAM of DeepSpeed's launcher on a host: two Python processes that import torch."""


class HostStates(NamedTuple):
    """Offloaded bytes of one rank in host RAM."""

    parameters: Size
    gradients: Size
    optimizer_states: Size
    swap_buffers: Size
    """Locked buffers between RAM and NVMe."""

    @property
    def total(self) -> Size:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer_states + self.swap_buffers


def host_states(
    settings: DeepSpeedSettings, shape: RankShape, *, data_parallel_size: Size, accumulates: bool, with_moments: bool = True
) -> HostStates:
    """What a rank keeps in RAM; Adam makes its moments in the first step, so before it they are missing."""
    if settings.optimizer_wrapper is OptimizerWrapper.zero3:
        return _stage3_states(settings, shape, data_parallel_size, with_moments)
    nothing = 0 * shape.parameters
    if not settings.offloads_optimizer or settings.optimizer_wrapper is not OptimizerWrapper.zero12:
        return HostStates(parameters=nothing, gradients=nothing, optimizer_states=nothing, swap_buffers=nothing)
    return _stage12_states(settings, shape, data_parallel_size, accumulates, with_moments)


def initialization_copy_bytes(settings: DeepSpeedSettings, shape: RankShape, *, data_parallel_size: Size) -> Size:
    """Pageable memory that construction needs for a moment: the block that is being pinned exists twice.

    Workers build the model on their device, and at stage 3 already partitioned, so no process holds a whole copy in RAM.
    """
    if not settings.offloads_optimizer or not settings.pins_memory:
        return 0 * shape.parameters
    return ceil_divide(shape.trainable_parameters, data_parallel_size) * FP32_BYTES


def save_copy_bytes(settings: DeepSpeedSettings, shape: RankShape, *, data_parallel_size: Size, writes_model: bool) -> Size:
    """RAM through which a checkpoint leaves the device: torch copies one storage at a time, so the largest counts.

    Every rank writes the flat fp32 shard of its optimizer states; the first data-parallel rank also the flat parameters,
    unless they are sharded.
    """
    shard = ceil_divide(shape.trainable_parameters, data_parallel_size)
    copied = 0 * shard if settings.offloads_optimizer else shard * FP32_BYTES
    if writes_model and settings.zero_stage < 3:
        whole = shape.parameters * DTYPE_BYTES[settings.dtype]
        copied = copied + (whole - copied) * (whole > copied)
    return copied


def pinned_bytes(size: Size) -> Size:
    """``size`` rounded up to a power of two."""
    if isinstance(size, np.ndarray):
        return np.where(size > 0, np.exp2(np.ceil(np.log2(np.maximum(size, 1)))), 0).astype(np.int64)
    return 1 << (int(size) - 1).bit_length() if size > 0 else 0


def _stage12_states(
    settings: DeepSpeedSettings, shape: RankShape, data_parallel_size: Size, accumulates: bool, with_moments: bool
) -> HostStates:
    """``zero/stage_1_and_2.py``: master copy, fp32 gradient and a 16-bit buffer of the shard, pinned; moments pageable.

    Gradients accumulated in the model's format are kept here between micro-batches; one buffer stages the largest gradient.
    """
    pinned = pinned_bytes if settings.pins_memory else _as_is
    shard = ceil_divide(shape.trainable_parameters, data_parallel_size)
    element = DTYPE_BYTES[settings.dtype]
    gradients = pinned(shard * FP32_BYTES) + pinned(shape.largest_parameter * element)
    if accumulates and settings.zero_stage == 2 and not mixes_gradient_formats(settings):
        gradients = gradients + pinned(shard * element)
    moments = _moments(settings, shape, data_parallel_size, elements=shard) if with_moments else 0 * shard
    return HostStates(
        parameters=pinned(shard * element),
        gradients=gradients,
        optimizer_states=pinned(shard * MASTER_BYTES) + moments,
        swap_buffers=0 * shard,
    )


def _stage3_states(settings: DeepSpeedSettings, shape: RankShape, data_parallel_size: Size, with_moments: bool) -> HostStates:
    """``zero/stage3.py`` and ``swap_tensor/``.

    Optimizer offload: the accumulated gradient of the shard, flat and pinned; in RAM also an fp32 gradient of each
    sub-group, pinned, and master copy and moments, pageable; on NVMe ``buffer_count`` fp32 buffers of a sub-group instead.
    Parameter offload: the shard, flat and pinned; with NVMe no more than ``max_in_cpu`` elements of it, ``buffer_count``
    buffers, and once the disk is used a buffer of a sub-group of whole parameters.
    """
    pinned = pinned_bytes if settings.pins_memory else _as_is
    shard = ceil_divide(shape.parameters, data_parallel_size)
    element = DTYPE_BYTES[settings.dtype]
    trained = ceil_divide(shape.trainable_parameters, data_parallel_size)
    group = smaller(trained, settings.sub_group_size + ceil_divide(shape.largest_parameter, data_parallel_size))
    parameters = gradients = optimizer_states = swap_buffers = 0 * shard
    if settings.offloads_optimizer:
        gradients = pinned(trained * DTYPE_BYTES[settings.grad_accum_dtype])
    match settings.offload_optimizer_device:
        case OffloadDevice.cpu:
            offloaded = trained - device_optimizer_elements(settings, shard=trained)
            num_groups = offloaded // larger(group, 1)
            gradients = gradients + num_groups * pinned(group * FP32_BYTES)
            gradients = gradients + pinned((offloaded - num_groups * group) * FP32_BYTES)
            optimizer_states = offloaded * MASTER_BYTES
            if with_moments:
                optimizer_states = optimizer_states + _moments(settings, shape, data_parallel_size, elements=offloaded)
        case OffloadDevice.nvme:
            swap_buffers = swap_buffers + settings.optimizer_buffer_count * group * FP32_BYTES
        case OffloadDevice.none:
            pass
    match settings.offload_param_device:
        case OffloadDevice.cpu:
            parameters = pinned(shard * element)
        case OffloadDevice.nvme:
            on_disk = parameters_on_disk(settings, shard=shard)
            parameters = pinned((shard - on_disk) * element)
            swap_buffers = swap_buffers + settings.param_buffer_count * settings.param_buffer_size * element
            swap_buffers = swap_buffers + (on_disk > 0) * group * data_parallel_size * element
        case OffloadDevice.none:
            pass
    return HostStates(parameters=parameters, gradients=gradients, optimizer_states=optimizer_states, swap_buffers=swap_buffers)


def _moments(settings: DeepSpeedSettings, shape: RankShape, data_parallel_size: Size, *, elements: Size) -> Size:
    return moment_bytes(settings, elements=elements, num_muon=ceil_divide(shape.muon_parameters, data_parallel_size))


def _as_is(size: Size) -> Size:
    return size
