"""Rules about options that were changed and that DeepSpeed, as it is set up here, never looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.config.schema import OffloadConfig, PrecisionConfig, ZeroConfig
from orchestrator.deepspeed_config.settings import OptimizerWrapper
from orchestrator.findings import Finding, Severity, info, warning
from orchestrator.planning.rules.registry import RuleContext, rule

_BUCKETED = frozenset({OptimizerWrapper.zero12, OptimizerWrapper.zero3})
_STAGE_3 = frozenset({OptimizerWrapper.zero3})
_READ_BY: Mapping[str, frozenset[OptimizerWrapper]] = {
    "reduce_bucket_size": _BUCKETED,
    "allgather_bucket_size": frozenset({OptimizerWrapper.bf16, OptimizerWrapper.zero12}),
    "overlap_comm": _BUCKETED,
    "contiguous_gradients": _BUCKETED,
    "reduce_scatter": _BUCKETED,
    "sub_group_size": _STAGE_3,
    "stage3_prefetch_bucket_size": _STAGE_3,
    "stage3_param_persistence_threshold": _STAGE_3,
    "stage3_max_live_parameters": _STAGE_3,
    "stage3_max_reuse_distance": _STAGE_3,
}
"""Options of ``zero`` -> the optimizer wrappers that look at them (DeepSpeed 0.19.8, ``runtime/engine.py``)."""
_PARTNER = {"stage3_prefetch_bucket_size"}
"""Options whose zero is what another rule asks for."""


@rule("zero-unused", "no option of zero was changed that this ZeRO stage never looks at", Severity.warning)
def zero_unused(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed accepts them at every stage. BF16_Optimizer (stage 1, bf16 with fp32 gradients) reduces in its own buffers."""
    wrapper, stage = context.settings.optimizer_wrapper, context.config.zero.stage
    pipeline = context.config.parallelism.pipeline_parallel_size > 1
    for name, value in _changed(context.config.zero, ZeroConfig()):
        readers = _READ_BY.get(name)
        if readers is None or (stage > 0 and wrapper in readers) or (name in _PARTNER and value == 0):
            continue
        if name == "overlap_comm" and (pipeline or value is False):
            continue
        why = f"zero.stage={stage}" if wrapper is not OptimizerWrapper.bf16 else f"the optimizer of bf16 at zero.stage={stage}"
        stages = "stage 3" if readers == _STAGE_3 else "stages 1 and 2" if name == "allgather_bucket_size" else "stages 2 and 3"
        default = _written(getattr(ZeroConfig(), name))
        message = f"{_written(value)} has no effect: {why} does not look at it"
        yield warning("zero-unused", f"zero.{name}", message, f"set zero.{name}={default}, or use it at {stages}")


@rule("zero-contiguous-gradients", "gradients stay contiguous with an offloaded optimizer", Severity.warning)
def contiguous_gradients(context: RuleContext) -> Iterator[Finding]:
    """At stages 1 and 2 DeepSpeed switches the copy on again, unsaid (``zero/stage_1_and_2.py``)."""
    settings = context.settings
    switched_on = settings.optimizer_wrapper is OptimizerWrapper.zero12 and settings.offloads_optimizer
    if switched_on and not context.config.zero.contiguous_gradients:
        yield warning(
            "zero-contiguous-gradients",
            "zero.contiguous_gradients",
            f"false is not kept: offload.optimizer_device={settings.offload_optimizer_device} switches it on",
            "set zero.contiguous_gradients=true",
        )


@rule("offload-unused", "no option of offload was changed that nothing looks at", Severity.info)
def offload_unused(context: RuleContext) -> Iterator[Finding]:
    """The buffers are those of NVMe; pinning is for what is offloaded."""
    offload = context.config.offload
    devices = {"optimizer": offload.optimizer_device, "param": offload.param_device}
    for name, value in _changed(offload, OffloadConfig()):
        owner = name.split("_")[0]
        if name == "pin_memory" and set(devices.values()) == {OffloadDevice.none}:
            message = f"{_written(value)} has no effect: nothing is offloaded"
        elif name not in ("optimizer_device", "param_device", "optimizer_ratio") and owner in devices:
            if devices[owner] is OffloadDevice.nvme:
                continue
            message = f"{value} has no effect with offload.{owner}_device={devices[owner]}: it is about NVMe"
        else:
            continue
        default = _written(getattr(OffloadConfig(), name))
        yield info("offload-unused", f"offload.{name}", message, f"set offload.{name}={default}")


@rule("loss-scale-unused", "no option of dynamic loss scaling was changed where none happens", Severity.info)
def loss_scale_unused(context: RuleContext) -> Iterator[Finding]:
    """It happens in fp16 with ``loss_scale=0``."""
    precision = context.config.precision
    if precision.dtype is Precision.fp16 and precision.loss_scale == 0:
        return
    why = f"precision.loss_scale={precision.loss_scale:g} is fixed" if precision.dtype is Precision.fp16 else precision.dtype
    for name, value in _changed(precision, PrecisionConfig()):
        if name in ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
            default = getattr(PrecisionConfig(), name)
            message = f"{value} has no effect: it is about dynamic loss scaling, and {_scaling(why)}"
            yield info("loss-scale-unused", f"precision.{name}", message, f"set precision.{name}={default}")


def _scaling(why: str) -> str:
    return why if "fixed" in why else f"{why} scales no loss"


def _changed(section: Any, defaults: Any) -> Iterator[tuple[str, Any]]:
    """The options of a section that are not what they are by default."""
    for name in type(section).__dataclass_fields__:
        value = attrgetter(name)(section)
        if value != getattr(defaults, name):
            yield name, value


def _written(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
