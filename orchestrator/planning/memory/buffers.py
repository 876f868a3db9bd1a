"""Buffers DeepSpeed allocates beside the model states: reduction buckets, gathered parameters, copies of the optimizer step.

Read in DeepSpeed 0.19.8 (``zero/stage_1_and_2.py``, ``zero/stage3.py``, ``bf16_optimizer.py``, ``engine.py``). The all-gather
of ZeRO-1 and 2 after the step works in place, so ``allgather_bucket_size`` costs nothing. A bucket is one allocation: a GPU
gives it whole, however small the model; a CPU only the pages that are written.
"""

from __future__ import annotations

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, OptimizerImplementation, OptimizerWrapper
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.memory.shape import RankShape
from orchestrator.planning.memory.states import FP32_BYTES, device_optimizer_elements, mixes_gradient_formats
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.units import DTYPE_BYTES, MIB

UNSHARDED_BUCKET = 500_000_000
"""Elements the engine itself reduces at once, without ZeRO and with BF16_Optimizer (``MEMORY_OPT_ALLREDUCE_SIZE``)."""
TEMPORARIES = {
    OptimizerImplementation.torch_sgd: 1,
    OptimizerImplementation.torch_adagrad: 2,
    OptimizerImplementation.muon: 2,
}
"""fp32 temporaries of the tensor that is updated, of the optimizers that make any. AdamW's kernels, torch's fused one for CPUs
among them, work in place."""
CUBLAS_WORKSPACE_BYTES = 32 * MIB
"""Workspace of the matrix library on a GPU, taken from the allocator by the first product."""


def workspace_bytes(settings: DeepSpeedSettings) -> int:
    """Memory of the matrix library."""
    return 0 if settings.accelerator is Accelerator.cpu else CUBLAS_WORKSPACE_BYTES


def reduce_bucket_bytes(settings: DeepSpeedSettings, shape: RankShape, *, pipeline: bool = False) -> Size:
    """The buckets into which gradients are copied to be reduced: two when communication overlaps at stages 1 and 2.

    In a pipeline the backward pass makes one and the reduction another (``stage_1_and_2.py:reduce_gradients``).
    """
    if settings.optimizer_wrapper not in (OptimizerWrapper.zero12, OptimizerWrapper.zero3):
        return 0 * shape.trainable_parameters
    elements: Size = settings.reduce_bucket_size + 0 * shape.trainable_parameters
    if settings.accelerator is Accelerator.cpu or not settings.contiguous_gradients:
        elements = smaller(elements, shape.trainable_parameters)
    if settings.optimizer_wrapper is OptimizerWrapper.zero3:
        return elements * DTYPE_BYTES[settings.communication_data_type]
    count = 2 if settings.overlap_comm or (pipeline and settings.contiguous_gradients) else 1
    return elements * count * _reduced_bytes(settings)


def reduction_copy_bytes(settings: DeepSpeedSettings, shape: RankShape) -> Size:
    """The flat copy that is communicated, and its conversion where gradients travel in another format.

    Without ZeRO the engine flattens 500 million elements and the tensor that fills them up. BF16_Optimizer has one fp32
    tensor for the weights and a small one for norms and biases: below 500 million elements both are flattened together, above
    each is sent by itself, and flattening one tensor copies nothing (``engine.py:allreduce_no_retain``).
    """
    sent = DTYPE_BYTES[settings.communication_data_type]
    if settings.optimizer_wrapper in (OptimizerWrapper.zero12, OptimizerWrapper.zero3):
        elements = smaller(larger(settings.reduce_bucket_size, shape.largest_parameter), shape.trainable_parameters)
        if settings.optimizer_wrapper is OptimizerWrapper.zero3:
            return elements * sent
        made = _reduced_bytes(settings)
    elif settings.optimizer_wrapper is OptimizerWrapper.bf16:
        elements = shape.trainable_parameters
        made = DTYPE_BYTES[settings.grad_accum_dtype]
        flattened = elements * (elements <= UNSHARDED_BUCKET)
        return flattened * made + elements * (sent if sent != made else 0)
    else:
        elements = smaller(UNSHARDED_BUCKET + shape.largest_parameter, shape.trainable_parameters)
        made = DTYPE_BYTES[settings.dtype]
    return elements * (made + (sent if sent != made else 0))


def gradient_copy_bytes(settings: DeepSpeedSettings, shape: RankShape, *, data_parallel_size: Size, accumulates: bool) -> Size:
    """Gradients that exist twice for a moment during the backward pass.

    The one that is being made, and ZeRO-2's shard of this micro-batch before it is added to that of the earlier ones.
    Optimizer offload at stages 1 and 2 stages each gradient in a buffer of the largest.
    """
    copies = shape.largest_parameter * DTYPE_BYTES[settings.dtype]
    if settings.optimizer_wrapper is not OptimizerWrapper.zero12:
        return copies
    if settings.offloads_optimizer:
        return 2 * copies
    if settings.zero_stage == 2 and accumulates and not mixes_gradient_formats(settings):
        return copies + ceil_divide(shape.trainable_parameters, data_parallel_size) * DTYPE_BYTES[settings.dtype]
    return copies


def gathered_parameter_bytes(settings: DeepSpeedSettings, shape: RankShape, *, data_parallel_size: Size) -> Size:
    """Whole parameters of ZeRO-3 on the device at once, and the flat buffer of the gather that makes the next.

    Those in use and those kept for another use are bounded by ``stage3_max_live_parameters`` and
    ``stage3_max_reuse_distance``; the tensor in use and what is prefetched are always there, and so are those below the
    persistence threshold (``partitioned_param_coordinator.py``). One rank that offloads nothing has them anyway. That weights
    leave the device between forward and backward pass takes DeepSpeed's own linear, which the worker installs.
    """
    if settings.optimizer_wrapper is not OptimizerWrapper.zero3:
        return 0 * shape.parameters
    kept = min(settings.stage3_max_live_parameters, settings.stage3_max_reuse_distance)
    fetched = shape.largest_parameter + settings.stage3_prefetch_bucket_size
    live = smaller(shape.parameters, larger(kept, fetched) + shape.persistent_parameters)
    gather = smaller(shape.parameters, larger(shape.largest_parameter, settings.stage3_prefetch_bucket_size))
    shared = data_parallel_size > 1
    return (live * (shared | settings.offloads_parameters) + gather * shared) * DTYPE_BYTES[settings.dtype]


def optimizer_step_bytes(settings: DeepSpeedSettings, shape: RankShape, *, data_parallel_size: Size) -> Size:
    """What the optimizer step allocates on the device on top of states and gradients; nothing where it runs on the CPU.

    ZeRO-1 and 2 flatten the shard's gradient and convert it to fp32; ZeRO-3 does so for one sub-group. Without ZeRO,
    FP16_Optimizer converts every gradient and flattens the copies. Some optimizers add fp32 temporaries of the tensor that
    they update. What a partial offload leaves on the device is updated there by torch's, from an
    fp32 gradient of the sub-group.
    """
    shard = ceil_divide(shape.trainable_parameters, data_parallel_size)
    if settings.offloads_optimizer:
        kept = smaller(device_optimizer_elements(settings, shard=shard), settings.sub_group_size)
        return kept * 3 * FP32_BYTES
    accumulated = DTYPE_BYTES[settings.grad_accum_dtype]
    converted = FP32_BYTES if accumulated < FP32_BYTES else 0
    temporary = TEMPORARIES.get(settings.optimizer_implementation, 0) * FP32_BYTES
    match settings.optimizer_wrapper:
        case OptimizerWrapper.plain:
            return shape.largest_parameter * temporary
        case OptimizerWrapper.fp16:
            if settings.optimizer_implementation is not OptimizerImplementation.fused_adam:
                return shape.trainable_parameters * FP32_BYTES + shape.largest_parameter * temporary
            return shape.trainable_parameters * 2 * FP32_BYTES
        case OptimizerWrapper.bf16:
            return shard * (converted + temporary)
        case OptimizerWrapper.zero12:
            # Accumulation in another format leaves one flat fp32 shard, which the step takes as it is.
            flat = 0 if mixes_gradient_formats(settings) and accumulated == FP32_BYTES else accumulated + converted
            return shard * (flat + temporary)
        case OptimizerWrapper.zero3:
            group = smaller(shard, settings.sub_group_size + ceil_divide(shape.largest_parameter, data_parallel_size))
            return group * (accumulated + converted + temporary)


def _reduced_bytes(settings: DeepSpeedSettings) -> int:
    """Bytes of a gradient in the bucket of ZeRO-1 and 2: ZeRO-1 stages what it accumulated, ZeRO-2 what backward made."""
    return DTYPE_BYTES[settings.grad_accum_dtype if settings.zero_stage == 1 else settings.dtype]
