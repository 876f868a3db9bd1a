"""The complete DeepSpeed configuration of a run. Every value is written out, so no default of another version can slip in."""

from __future__ import annotations

from typing import Any

from orchestrator.config.enums import Accelerator, OffloadDevice, OptimizerType, PipelineSchedule, Precision
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, OptimizerImplementation

NEVER = 2**31 - 1
"""Steps between two of DeepSpeed's own progress lines: the worker reports instead."""

_ASYNC_IO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
    "use_gds": False,
}


def compile_config(
    config: RunConfig,
    settings: DeepSpeedSettings,
    *,
    train_batch_size: int,
    train_micro_batch_size_per_gpu: int,
    gradient_accumulation_steps: int,
    nvme_directory: str | None = None,
) -> dict[str, Any]:
    """The JSON object for ``deepspeed.initialize(config=...)``.

    ``settings`` are those of ``config`` (``resolve_settings``), the batch sizes those of its layout. ``nvme_directory`` is the
    directory of the run's own on the disk; without it ``offload.nvme_path`` is written. Only blocks that are in use appear,
    and only keys that the ZeRO stage reads. There is no scheduler block (the worker owns the schedule), no monitor block (the
    worker owns the tracking) and no ``activation_checkpointing`` block (the model recomputes by itself).
    """
    nvme_path = nvme_directory or settings.nvme_path
    compiled: dict[str, Any] = {
        "train_batch_size": train_batch_size,
        "train_micro_batch_size_per_gpu": train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "steps_per_print": NEVER,
        "wall_clock_breakdown": False,
        "memory_breakdown": False,
        "dump_state": False,
        "gradient_clipping": settings.gradient_clipping,
        "prescale_gradients": settings.prescale_gradients,
        "gradient_predivide_factor": settings.gradient_predivide_factor,
        "communication_data_type": settings.communication_data_type.value,
        "data_types": {"grad_accum_dtype": settings.grad_accum_dtype.value},
        "zero_optimization": _zero_block(settings, nvme_path),
        "optimizer": _optimizer_block(config, settings),
    }
    if config.optimizer.type is OptimizerType.SGD and settings.zero_stage > 0:
        compiled["zero_allow_untested_optimizer"] = True
    if settings.dtype is Precision.bf16:
        compiled["bf16"] = {"enabled": True}
    if settings.dtype is Precision.fp16:
        compiled["fp16"] = _fp16_block(config)
    if config.parallelism.pipeline_parallel_size > 1:
        compiled["pipeline"] = _pipeline_block(config)
    if OffloadDevice.nvme in (settings.offload_optimizer_device, settings.offload_param_device):
        compiled["aio"] = dict(_ASYNC_IO)
    return compiled


def _zero_block(settings: DeepSpeedSettings, nvme_path: str | None) -> dict[str, Any]:
    block: dict[str, Any] = {"stage": settings.zero_stage}
    if settings.zero_stage == 0:
        return block
    block |= {
        "reduce_bucket_size": settings.reduce_bucket_size,
        "overlap_comm": settings.overlap_comm,
        "contiguous_gradients": settings.contiguous_gradients,
        "reduce_scatter": settings.reduce_scatter,
    }
    if settings.zero_stage == 3:
        block |= {
            "sub_group_size": settings.sub_group_size,
            "stage3_prefetch_bucket_size": settings.stage3_prefetch_bucket_size,
            "stage3_param_persistence_threshold": settings.stage3_param_persistence_threshold,
            "stage3_max_live_parameters": settings.stage3_max_live_parameters,
            "stage3_max_reuse_distance": settings.stage3_max_reuse_distance,
        }
    else:
        block |= {
            "allgather_bucket_size": settings.allgather_bucket_size,
            "round_robin_gradients": settings.round_robin_gradients,
        }
    if settings.offloads_optimizer:
        block["offload_optimizer"] = _offload_optimizer_block(settings, nvme_path)
    if settings.offloads_parameters and settings.zero_stage == 3:
        block["offload_param"] = _offload_param_block(settings, nvme_path)
    return block


def _offload_optimizer_block(settings: DeepSpeedSettings, nvme_path: str | None) -> dict[str, Any]:
    block: dict[str, Any] = {"device": settings.offload_optimizer_device.value, "pin_memory": settings.pin_memory}
    if settings.zero_stage == 3:
        block["ratio"] = settings.optimizer_ratio
    if settings.offload_optimizer_device is not OffloadDevice.nvme:
        return block
    return {
        **block,
        "nvme_path": nvme_path,
        "buffer_count": settings.optimizer_buffer_count,
        "pipeline_read": False,
        "pipeline_write": False,
        "fast_init": False,
    }


def _offload_param_block(settings: DeepSpeedSettings, nvme_path: str | None) -> dict[str, Any]:
    block = {"device": settings.offload_param_device.value, "pin_memory": settings.pin_memory}
    if settings.offload_param_device is not OffloadDevice.nvme:
        return block
    return {
        **block,
        "nvme_path": nvme_path,
        "buffer_count": settings.param_buffer_count,
        "buffer_size": settings.param_buffer_size,
        "max_in_cpu": settings.param_max_in_cpu,
    }


def _optimizer_block(config: RunConfig, settings: DeepSpeedSettings) -> dict[str, Any]:
    optimizer = config.optimizer
    common: dict[str, Any] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    adam: dict[str, Any] = {
        "lr": optimizer.lr,
        "betas": list(optimizer.betas),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
    }
    if settings.accelerator is Accelerator.cpu and not settings.offloads_optimizer:
        adam["torch_adam"] = True
    if settings.optimizer_implementation is OptimizerImplementation.torch_adamw:
        # one pass over each tensor: half the time of torch's loop of operations, and no temporaries
        adam["fused"] = True
    match optimizer.type:
        case OptimizerType.AdamW:
            params = adam
        case OptimizerType.Adam:
            # without it DeepSpeed's "Adam" is AdamW
            params = {**adam, "adam_w_mode": False}
        case OptimizerType.Lion:
            params = {**common, "betas": list(optimizer.betas)}
        case OptimizerType.SGD:
            params = {**common, "momentum": optimizer.momentum}
        case OptimizerType.Adagrad:
            params = {**common, "eps": optimizer.eps}
        case OptimizerType.Muon:
            adam_lr = optimizer.lr if optimizer.adam_lr is None else optimizer.adam_lr
            params = {**adam, "adam_lr": adam_lr, "momentum": optimizer.momentum, "ns_method": "gram"}
    return {"type": optimizer.type.value, "params": params}


def _fp16_block(config: RunConfig) -> dict[str, Any]:
    precision = config.precision
    block: dict[str, Any] = {"enabled": True, "auto_cast": False, "loss_scale": precision.loss_scale}
    if precision.loss_scale != 0:
        return block
    return {
        **block,
        "initial_scale_power": precision.initial_scale_power,
        "loss_scale_window": precision.loss_scale_window,
        "hysteresis": precision.hysteresis,
        "consecutive_hysteresis": False,
        "min_loss_scale": precision.min_loss_scale,
    }


def _pipeline_block(config: RunConfig) -> dict[str, Any]:
    """How the stages exchange activations and gradients: cut over the tensor-parallel ranks, and gathered behind the wire.

    With sequence parallelism they are cut already, and DeepSpeed's DualPipeV engine cannot. The interval is 0 because the
    model recomputes by itself; ``use_reentrant`` is only written so that DeepSpeed leaves its checkpoint function alone.
    """
    parallelism = config.parallelism
    whole_on_each_rank = parallelism.tensor_parallel_size > 1 and not parallelism.sequence_parallel
    partitioned = whole_on_each_rank and parallelism.schedule is not PipelineSchedule.dual_pipe_v
    return {
        "activation_checkpoint_interval": 0,
        "use_reentrant": True,
        "pipe_partitioned": partitioned,
        "grad_partitioned": partitioned,
    }
