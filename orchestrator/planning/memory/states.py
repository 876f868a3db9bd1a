"""Model states: parameters, gradients and optimizer states of one rank.

Every count may be a number or a numpy array; arrays broadcast. The bytes a parameter, read in DeepSpeed 0.19.8 and counted in
its engines by the tests (N = data-parallel size, a = bytes of the gradient accumulation format):

=====================  ==========  =========  =====================
wrapper                parameters  gradients  optimizer states
=====================  ==========  =========  =====================
fp32, no ZeRO          4           4          8
16 bit, no ZeRO        2           2          12
BF16_Optimizer         2           a          12/N
ZeRO-1                 2           a          12/N
ZeRO-2                 2           a/N        12/N
ZeRO-3                 2/N         a/N        12/N
fp32, ZeRO-1           4           4          12/N (it keeps a copy)
=====================  ==========  =========  =====================

The optimizer states are those of Adam: 4 bytes of a master copy and 8 of two moments. Other optimizers remember less, see
``moment_bytes``. With 16-bit gradients this is 16 bytes a parameter in all: the arithmetic of the ZeRO paper (Rajbhandari et
al., 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from orchestrator.config.enums import OffloadDevice
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, OptimizerImplementation, OptimizerWrapper
from orchestrator.planning.broadcast import choose, smaller
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.units import DTYPE_BYTES

MASTER_BYTES = 4
"""The fp32 copy of a parameter that the optimizer updates."""
MOMENT_BYTES = 8
"""Adam's two fp32 moments of a parameter."""
FP32_BYTES = 4
MOMENTS: Mapping[OptimizerImplementation, int] = {
    OptimizerImplementation.torch_adamw: 2,
    OptimizerImplementation.fused_adam: 2,
    OptimizerImplementation.cpu_adam: 2,
    OptimizerImplementation.fused_lion: 1,
    OptimizerImplementation.cpu_lion: 2,
    OptimizerImplementation.torch_sgd: 1,
    OptimizerImplementation.torch_adagrad: 1,
    OptimizerImplementation.cpu_adagrad: 1,
    OptimizerImplementation.muon: 2,
}
"""fp32 numbers that an optimizer remembers of an element; of Muon those of its Adam, of SGD those with momentum."""


class ModelStates(NamedTuple):
    """Bytes of one rank's model states."""

    parameters: Size
    gradients: Size
    optimizer_states: Size

    @property
    def total(self) -> Size:
        """All three."""
        return self.parameters + self.gradients + self.optimizer_states


def model_state_bytes(
    num_parameters: Size,
    *,
    zero_stage: Size,
    data_parallel_size: Size = 1,
    tensor_parallel_size: Size = 1,
    pipeline_parallel_size: Size = 1,
    dtype_bytes: int = 2,
    grad_dtype_bytes: int = 2,
    moment_bytes: int = MOMENT_BYTES,
) -> ModelStates:
    """States of a rank that holds an equal share of ``num_parameters``, wherever they are kept.

    Tensor and pipeline parallelism divide the parameters, ZeRO the states of what is left over the data-parallel ranks:
    optimizer states from stage 1, gradients from stage 2, parameters at stage 3. The source is section 3 of the ZeRO paper,
    with the exceptions of the module's table.
    """
    local = ceil_divide(num_parameters, tensor_parallel_size * pipeline_parallel_size)
    shard = ceil_divide(local, data_parallel_size)
    master = choose(zero_stage >= 1, MASTER_BYTES, 0) if dtype_bytes == FP32_BYTES else MASTER_BYTES
    return ModelStates(
        parameters=choose(zero_stage >= 3, shard, local) * dtype_bytes,
        gradients=choose(zero_stage >= 2, shard, local) * grad_dtype_bytes,
        optimizer_states=choose(zero_stage >= 1, shard, local) * (master + moment_bytes),
    )


def moment_bytes(settings: DeepSpeedSettings, *, elements: Size, num_muon: Size = 0) -> Size:
    """What the optimizer remembers of ``elements`` elements beside the master copy; ``num_muon`` of them are Muon's."""
    if settings.optimizer_implementation is OptimizerImplementation.torch_sgd and settings.optimizer_momentum == 0:
        return 0 * elements
    each = MOMENTS[settings.optimizer_implementation] * FP32_BYTES
    if settings.optimizer_implementation is not OptimizerImplementation.muon:
        return elements * each
    return (elements - num_muon) * each + num_muon * muon_bytes(settings)


def muon_bytes(settings: DeepSpeedSettings) -> int:
    """What DeepSpeed's Muon remembers of an element of a matrix.

    fp32 momentum, but ZeRO keeps it in the format that it orthogonalizes in: stages 1 and 2 in that of the gradient, twice
    (``stage_1_and_2.py:_muon_staging_momentum``), stage 3 in that of the communication. Offloaded it is fp32 at stages 1 and 2.
    """
    match settings.optimizer_wrapper:
        case OptimizerWrapper.zero12 if not settings.offloads_optimizer:
            return 2 * DTYPE_BYTES[settings.grad_accum_dtype if settings.zero_stage == 1 else settings.dtype]
        case OptimizerWrapper.zero3:
            return DTYPE_BYTES[settings.communication_data_type]
        case _:
            return FP32_BYTES


def rank_states(
    settings: DeepSpeedSettings, *, num_parameters: Size, data_parallel_size: Size, num_muon: Size = 0
) -> ModelStates:
    """States of a rank that holds ``num_parameters`` after tensor and pipeline parallelism, wherever they are kept.

    ``num_muon`` of them are in matrices that Muon updates, if it is the optimizer.
    """
    states = model_state_bytes(
        num_parameters,
        zero_stage=settings.sharding_stage,
        data_parallel_size=data_parallel_size,
        dtype_bytes=DTYPE_BYTES[settings.dtype],
        grad_dtype_bytes=DTYPE_BYTES[settings.grad_accum_dtype],
        moment_bytes=0,
    )
    sharders = data_parallel_size if settings.sharding_stage >= 1 else 1
    moments = moment_bytes(settings, elements=ceil_divide(num_parameters, sharders), num_muon=ceil_divide(num_muon, sharders))
    return states._replace(optimizer_states=states.optimizer_states + moments)


def device_states(
    settings: DeepSpeedSettings,
    *,
    num_parameters: Size,
    data_parallel_size: Size,
    num_trainable: Size | None = None,
    num_muon: Size = 0,
) -> ModelStates:
    """What of ``rank_states`` stays on the device: the rest is in host RAM or on NVMe.

    ``num_trainable`` of the parameters (all, if it is not given) have gradients and optimizer states, and ``num_muon`` of
    those are in matrices that Muon updates, if it is the optimizer.
    """
    trained = num_parameters if num_trainable is None else num_trainable
    of_trained = rank_states(settings, num_parameters=trained, data_parallel_size=data_parallel_size, num_muon=num_muon)
    states = of_trained
    if trained is not num_parameters:
        states = rank_states(settings, num_parameters=num_parameters, data_parallel_size=data_parallel_size)
    optimizer_states = of_trained.optimizer_states
    if settings.offloads_optimizer:
        kept = device_optimizer_elements(settings, shard=ceil_divide(trained, data_parallel_size))
        optimizer_states = kept * (MASTER_BYTES + MOMENT_BYTES)
    return ModelStates(
        parameters=0 if _offloads_parameters(settings) else states.parameters,
        gradients=_device_gradients(settings, num_parameters=trained, data_parallel_size=data_parallel_size),
        optimizer_states=optimizer_states,
    )


def num_sub_groups(settings: DeepSpeedSettings, *, shard: Size) -> Size:
    """Sub-groups of a rank's optimizer at stage 3: those of the weights, and one of the norms and biases."""
    return ceil_divide(shard, settings.sub_group_size) + 1


def device_optimizer_elements(settings: DeepSpeedSettings, *, shard: Size) -> Size:
    """Elements of the shard whose optimizer states an offloaded optimizer leaves on the device.

    ``optimizer_ratio`` below 1 leaves whole sub-groups there, the first (1 - ratio) of them rounded down
    (``zero/stage3.py:_create_fp32_partitions``).
    """
    if settings.offload_optimizer_device is not OffloadDevice.cpu or settings.optimizer_ratio >= 1 or settings.zero_stage < 3:
        return 0 * shard
    kept = (1 - settings.optimizer_ratio) * num_sub_groups(settings, shard=shard) // 1
    elements = kept * settings.sub_group_size
    return smaller(shard, elements.astype(int) if isinstance(elements, np.ndarray) else int(elements))


def gradients_leave_device(settings: DeepSpeedSettings) -> bool:
    """Whether gradients are accumulated in host RAM.

    They follow an offloaded optimizer at stage 3, and at stage 2 when they are accumulated in the model's format. ZeRO-1
    holds them on the device until they are reduced, and stages 1 and 2 accumulate in another format on the device.
    """
    if settings.offload_optimizer_device is OffloadDevice.none:
        return False
    return settings.zero_stage >= 3 or (settings.zero_stage == 2 and not mixes_gradient_formats(settings))


def mixes_gradient_formats(settings: DeepSpeedSettings) -> bool:
    """Whether gradients are accumulated in another format than the backward pass makes them in."""
    return settings.grad_accum_dtype is not settings.dtype


def resident_gradient_bytes(
    settings: DeepSpeedSettings, *, num_parameters: Size, data_parallel_size: Size, accumulates: bool
) -> Size:
    """Gradients on the device while a backward pass begins, when activations are at their peak.

    Without accumulation the gradients that are whole on each rank are made as activations go. With it those of the earlier
    micro-batches are there: BF16_Optimizer keeps its fp32 buffer all the time and the 16-bit gradients until the step.
    """
    gradients = _device_gradients(settings, num_parameters=num_parameters, data_parallel_size=data_parallel_size)
    if settings.optimizer_wrapper is OptimizerWrapper.bf16:
        return gradients + (num_parameters * DTYPE_BYTES[settings.dtype] if accumulates else 0)
    return gradients if accumulates or settings.sharding_stage >= 2 else 0


def whole_gradient_bytes(settings: DeepSpeedSettings, *, num_parameters: Size, data_parallel_size: Size) -> Size:
    """Gradients on the device at the end of the last backward pass."""
    gradients = _device_gradients(settings, num_parameters=num_parameters, data_parallel_size=data_parallel_size)
    if settings.optimizer_wrapper is OptimizerWrapper.bf16:
        return gradients + num_parameters * DTYPE_BYTES[settings.dtype]
    return gradients


def step_gradient_bytes(settings: DeepSpeedSettings, *, num_parameters: Size, data_parallel_size: Size) -> Size:
    """Gradients on the device during the optimizer step: ZeRO-1 and 2 have let go of all but this rank's shard."""
    if settings.optimizer_wrapper is not OptimizerWrapper.zero12:
        return whole_gradient_bytes(settings, num_parameters=num_parameters, data_parallel_size=data_parallel_size)
    if settings.offloads_optimizer and not mixes_gradient_formats(settings):
        return 0
    return ceil_divide(num_parameters, data_parallel_size) * DTYPE_BYTES[settings.grad_accum_dtype]


def _device_gradients(settings: DeepSpeedSettings, *, num_parameters: Size, data_parallel_size: Size) -> Size:
    """Accumulated gradients that are on the device between two passes."""
    if gradients_leave_device(settings):
        return 0
    held = ceil_divide(num_parameters, data_parallel_size) if settings.sharding_stage >= 2 else num_parameters
    return held * DTYPE_BYTES[settings.grad_accum_dtype]


def _offloads_parameters(settings: DeepSpeedSettings) -> bool:
    return settings.offloads_parameters and settings.zero_stage >= 3
