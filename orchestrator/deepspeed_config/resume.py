"""The options that decide what a checkpoint's files mean beyond layout, stage and precision."""

from __future__ import annotations

from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import resolve_settings


def fixed_options(config: RunConfig) -> dict[str, Any]:
    """Options by their dotted names, as plain values, that a resumed run must share with the checkpoint.

    DeepSpeed lays the optimizer's states out by them, and would load those of another run without a word or fail deep inside.
    Random states belong to the ranks that share activations, so sequence parallelism is among them.
    """
    settings = resolve_settings(config)
    fixed: dict[str, Any] = {
        "parallelism.sequence_parallel": config.parallelism.sequence_parallel,
        "offload.optimizer_device": settings.offload_optimizer_device.value,
        "offload.param_device": settings.offload_param_device.value,
        "optimizer.type": config.optimizer.type.value,
        "precision.grad_accum_dtype": settings.grad_accum_dtype.value,
        "training.freeze": list(config.training.freeze),
    }
    if settings.zero_stage == 3:
        fixed["zero.sub_group_size"] = settings.sub_group_size
        fixed["offload.optimizer_ratio"] = settings.optimizer_ratio
    return fixed
