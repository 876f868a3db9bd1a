"""The values DeepSpeed will really use: its defaults, its automatic choices and its optimizer wrapper, resolved once.

The compiler writes these values and the memory estimate reads them, so that the estimate speaks of the run that is started.
The rules were read in DeepSpeed 0.19.8 and are compared with the installed package by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.config.enums import Accelerator, OffloadDevice, OptimizerType, Precision
from orchestrator.config.schema import RunConfig


class OptimizerWrapper(StrEnum):
    """DeepSpeed's optimizer classes; which one is used follows from ZeRO stage, dtypes, offload and pipeline."""

    plain = "plain"
    """The optimizer itself: fp32 without ZeRO."""
    fp16 = "fp16"
    """FP16_Optimizer or FP16_UnfusedOptimizer: 16-bit parameters (bf16 too) without ZeRO, every state on every rank."""
    bf16 = "bf16"
    """BF16_Optimizer: an fp32 gradient of the whole model on every rank, optimizer states sharded."""
    zero12 = "zero12"
    """DeepSpeedZeroOptimizer of stages 1 and 2."""
    zero3 = "zero3"
    """DeepSpeedZeroOptimizer_Stage3."""


class OptimizerImplementation(StrEnum):
    """What computes the step: kernels work in place, torch's other optimizers make temporaries."""

    torch_adamw = "torch_adamw"
    """torch.optim.AdamW, or Adam, with torch's fused kernel for CPUs."""
    fused_adam = "fused_adam"
    """DeepSpeed's CUDA kernel of both."""
    cpu_adam = "cpu_adam"
    """DeepSpeedCPUAdam, for offloaded states."""
    fused_lion = "fused_lion"
    """DeepSpeed's CUDA kernel; there is none for a CPU."""
    cpu_lion = "cpu_lion"
    """DeepSpeedCPULion, for offloaded states. It allocates Adam's second moment as well, and never uses it."""
    torch_sgd = "torch_sgd"
    """torch.optim.SGD, wherever the states are."""
    torch_adagrad = "torch_adagrad"
    """torch.optim.Adagrad."""
    cpu_adagrad = "cpu_adagrad"
    """DeepSpeedCPUAdagrad, for offloaded states."""
    muon = "muon"
    """MuonWithAuxAdam: Muon for the matrices of the layers, AdamW for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSettings:
    """Effective DeepSpeed settings. Bucket, live-parameter and sub-group sizes are elements, not bytes."""

    accelerator: Accelerator
    zero_stage: int
    dtype: Precision
    grad_accum_dtype: Precision
    communication_data_type: Precision
    optimizer_wrapper: OptimizerWrapper
    optimizer_implementation: OptimizerImplementation
    optimizer_momentum: float
    reduce_bucket_size: int
    allgather_bucket_size: int
    overlap_comm: bool
    contiguous_gradients: bool
    reduce_scatter: bool
    round_robin_gradients: bool
    sub_group_size: int
    stage3_prefetch_bucket_size: int
    stage3_param_persistence_threshold: int
    stage3_max_live_parameters: int
    stage3_max_reuse_distance: int
    offload_optimizer_device: OffloadDevice
    offload_param_device: OffloadDevice
    optimizer_ratio: float
    nvme_path: str | None
    pin_memory: bool
    optimizer_buffer_count: int
    param_buffer_count: int
    param_buffer_size: int
    param_max_in_cpu: int
    gradient_clipping: float
    prescale_gradients: bool
    gradient_predivide_factor: float

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer states leave the device."""
        return self.offload_optimizer_device is not OffloadDevice.none

    @property
    def offloads_parameters(self) -> bool:
        """Whether parameters leave the device between uses."""
        return self.offload_param_device is not OffloadDevice.none

    @property
    def sharding_stage(self) -> int:
        """The ZeRO stage whose sharding really happens: BF16_Optimizer shards optimizer states even at stage 0."""
        return max(self.zero_stage, 1) if self.optimizer_wrapper is OptimizerWrapper.bf16 else self.zero_stage

    @property
    def pins_memory(self) -> bool:
        """Whether offloaded states are page-locked; DeepSpeed's CPU accelerator never pins."""
        return self.pin_memory and self.accelerator is not Accelerator.cpu


def resolve_settings(config: RunConfig) -> DeepSpeedSettings:
    """What DeepSpeed makes of ``config``. Never raises: values that are illegal are kept, the rules report them."""
    dtype = config.precision.dtype
    stage = config.zero.stage
    pipeline = config.parallelism.pipeline_parallel_size > 1
    grad_accum_dtype = config.precision.grad_accum_dtype or default_grad_accum_dtype(dtype, stage)
    offload_optimizer = config.offload.optimizer_device
    return DeepSpeedSettings(
        accelerator=config.cluster.accelerator,
        zero_stage=stage,
        dtype=dtype,
        grad_accum_dtype=grad_accum_dtype,
        communication_data_type=config.communication.communication_data_type or dtype,
        optimizer_wrapper=optimizer_wrapper(
            zero_stage=stage,
            dtype=dtype,
            grad_accum_dtype=grad_accum_dtype,
            pipeline=pipeline,
            offloads_optimizer=offload_optimizer is not OffloadDevice.none,
        ),
        optimizer_implementation=optimizer_implementation(
            config.optimizer.type, config.cluster.accelerator, offloads_optimizer=offload_optimizer is not OffloadDevice.none
        ),
        optimizer_momentum=config.optimizer.momentum,
        reduce_bucket_size=config.zero.reduce_bucket_size,
        allgather_bucket_size=config.zero.allgather_bucket_size,
        overlap_comm=_overlap_comm(config.zero.overlap_comm, stage, pipeline),
        contiguous_gradients=config.zero.contiguous_gradients,
        reduce_scatter=config.zero.reduce_scatter,
        round_robin_gradients=config.zero.round_robin_gradients,
        sub_group_size=config.zero.sub_group_size,
        stage3_prefetch_bucket_size=config.zero.stage3_prefetch_bucket_size,
        stage3_param_persistence_threshold=config.zero.stage3_param_persistence_threshold,
        stage3_max_live_parameters=config.zero.stage3_max_live_parameters,
        stage3_max_reuse_distance=config.zero.stage3_max_reuse_distance,
        offload_optimizer_device=offload_optimizer,
        offload_param_device=config.offload.param_device,
        optimizer_ratio=config.offload.optimizer_ratio,
        nvme_path=config.offload.nvme_path,
        pin_memory=config.offload.pin_memory,
        optimizer_buffer_count=config.offload.optimizer_buffer_count,
        param_buffer_count=config.offload.param_buffer_count,
        param_buffer_size=config.offload.param_buffer_size,
        param_max_in_cpu=config.offload.param_max_in_cpu,
        gradient_clipping=config.training.gradient_clipping,
        prescale_gradients=config.communication.prescale_gradients,
        gradient_predivide_factor=config.communication.gradient_predivide_factor,
    )


def default_grad_accum_dtype(dtype: Precision, zero_stage: int) -> Precision:
    """fp32 for bf16 from ZeRO stage 1 up; the model's dtype else, which is all that stage 0 takes."""
    return Precision.fp32 if dtype is Precision.bf16 and zero_stage >= 1 else dtype


def optimizer_wrapper(
    *, zero_stage: int, dtype: Precision, grad_accum_dtype: Precision, pipeline: bool, offloads_optimizer: bool
) -> OptimizerWrapper:
    """The wrapper DeepSpeed picks (``engine.py:_do_optimizer_sanity_check``).

    Stage 0 with a gradient dtype unlike the model's is refused there; the answer for it is the one without that difference.
    """
    if zero_stage <= 0:
        if dtype is Precision.fp32:
            return OptimizerWrapper.plain
        if dtype is Precision.bf16 and pipeline:
            return OptimizerWrapper.bf16
        return OptimizerWrapper.fp16
    if zero_stage == 1 and dtype is Precision.bf16 and grad_accum_dtype is Precision.fp32 and not offloads_optimizer:
        return OptimizerWrapper.bf16
    return OptimizerWrapper.zero3 if zero_stage >= 3 else OptimizerWrapper.zero12


def _overlap_comm(asked: bool | None, zero_stage: int, pipeline: bool) -> bool:
    """DeepSpeed's default overlaps at stage 3 only, and the pipeline engine switches it off."""
    if pipeline:
        return False
    return zero_stage == 3 if asked is None else asked


def optimizer_implementation(
    optimizer: OptimizerType, accelerator: Accelerator, *, offloads_optimizer: bool
) -> OptimizerImplementation:
    """The implementation DeepSpeed picks (``engine.py:_configure_basic_optimizer``), with torch's Adam asked for on a CPU."""
    on_cpu = accelerator is Accelerator.cpu
    match optimizer:
        case OptimizerType.Muon:
            return OptimizerImplementation.muon
        case OptimizerType.SGD:
            return OptimizerImplementation.torch_sgd
        case OptimizerType.Adagrad:
            return OptimizerImplementation.cpu_adagrad if offloads_optimizer else OptimizerImplementation.torch_adagrad
        case OptimizerType.Lion:
            return OptimizerImplementation.cpu_lion if offloads_optimizer else OptimizerImplementation.fused_lion
        case OptimizerType.AdamW | OptimizerType.Adam:
            if offloads_optimizer:
                return OptimizerImplementation.cpu_adam
            return OptimizerImplementation.torch_adamw if on_cpu else OptimizerImplementation.fused_adam
