"""Rules about the optimizer: what DeepSpeed can really run it with. Each was tried with 0.19.8."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import Accelerator, OffloadDevice, OptimizerType
from orchestrator.deepspeed_config.settings import OptimizerImplementation, OptimizerWrapper
from orchestrator.findings import Finding, Severity, error, info
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

ADAM = (OptimizerType.AdamW, OptimizerType.Adam)


@rule("optimizer-device", "the optimizer has an implementation for the device", Severity.error)
def optimizer_device(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed's Lion is a CUDA kernel and, for offloaded states, a CPU kernel; torch has none."""
    settings = context.settings
    missing = settings.optimizer_implementation is OptimizerImplementation.fused_lion
    if missing and settings.accelerator is Accelerator.cpu:
        yield error(
            "optimizer-device",
            "optimizer.type",
            "DeepSpeed's Lion runs on a CPU only with offload.optimizer_device=cpu",
            "set offload.optimizer_device=cpu, from zero.stage=1 up",
        )


@rule("optimizer-adagrad", "Adagrad's states are offloaded, or not ZeRO's", Severity.error)
def optimizer_adagrad(context: RuleContext) -> Iterator[Finding]:
    """torch's Adagrad makes its states at once.

    ZeRO therefore makes the optimizer a second time and loses the parameter groups, the weight decay and the learning-rate
    schedule; the 16-bit wrappers look for states of tensors that the optimizer has never seen.
    """
    settings = context.settings
    by_torch = settings.optimizer_implementation is OptimizerImplementation.torch_adagrad
    if by_torch and settings.optimizer_wrapper is not OptimizerWrapper.plain:
        yield error(
            "optimizer-adagrad",
            "optimizer.type",
            f"DeepSpeed loses Adagrad's parameter groups and learning rates at zero.stage={settings.zero_stage} in "
            f"{settings.dtype.value}",
            "set offload.optimizer_device=cpu, or zero.stage=0 with precision.dtype=fp32",
        )


@rule("optimizer-muon-layout", "Muon has whole matrices", Severity.error, Fact.layout)
def muon_layout(context: RuleContext) -> Iterator[Finding]:
    """Of a shard it would make another update than of the matrix, and DeepSpeed's bf16 optimizer refuses an ``mpu``."""
    if context.config.optimizer.type is not OptimizerType.Muon:
        return
    for size in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = getattr(context.layout, size)
        if value > 1:
            yield error(
                "optimizer-muon-layout",
                f"parallelism.{size}",
                f"{value}, and Muon orthogonalizes whole matrices on data-parallel ranks only",
                f"set parallelism.{size}=1 and shard with zero.stage=3, or choose optimizer=adamw",
            )


@rule("optimizer-muon-reduce-scatter", "Muon at ZeRO-3 reduces whole gradients", Severity.error)
def muon_reduce_scatter(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed refuses it when the engine is built."""
    config = context.config
    if config.optimizer.type is OptimizerType.Muon and config.zero.stage == 3 and config.zero.reduce_scatter:
        yield error(
            "optimizer-muon-reduce-scatter",
            "zero.reduce_scatter",
            "true at ZeRO stage 3, where DeepSpeed's Muon needs every gradient whole",
            "set zero.reduce_scatter=false",
        )


@rule("optimizer-muon-clipping", "what is clipped is the gradient", Severity.error)
def muon_clipping(context: RuleContext) -> Iterator[Finding]:
    """ZeRO's optimizers make Muon's update before they take the norm, and clip that.

    An orthogonal update has a norm of about the root of its rank, so clipping would divide the learning rate by hundreds.
    """
    config, wrapper = context.config, context.settings.optimizer_wrapper
    clips_updates = wrapper in (OptimizerWrapper.zero12, OptimizerWrapper.zero3)
    if config.optimizer.type is OptimizerType.Muon and clips_updates and config.training.gradient_clipping > 0:
        yield error(
            "optimizer-muon-clipping",
            "training.gradient_clipping",
            f"{config.training.gradient_clipping}, and DeepSpeed's ZeRO clips Muon's orthogonal update instead of the "
            "gradient, which divides the learning rate by its norm",
            "set training.gradient_clipping=0",
        )


@rule("optimizer-ratio", "a partial offload is AdamW's", Severity.error)
def optimizer_ratio(context: RuleContext) -> Iterator[Finding]:
    """What a partial offload leaves on the device DeepSpeed updates with torch's AdamW, whatever the optimizer is."""
    optimizer, ratio = context.config.optimizer.type, context.config.offload.optimizer_ratio
    if ratio < 1 and context.config.zero.stage == 3 and optimizer is not OptimizerType.AdamW:
        yield error(
            "optimizer-ratio",
            "offload.optimizer_ratio",
            f"{ratio} leaves a part of the states on the device, which DeepSpeed updates with AdamW and not with "
            f"{optimizer.value}",
            "set offload.optimizer_ratio=1",
        )


@rule("optimizer-nvme", "optimizer states on NVMe are Adam's", Severity.error)
def optimizer_nvme(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed's swapper is made for a master copy, two moments and a gradient."""
    optimizer = context.config.optimizer.type
    if context.config.offload.optimizer_device is OffloadDevice.nvme and optimizer not in ADAM:
        yield error(
            "optimizer-nvme",
            "offload.optimizer_device",
            f"nvme, and DeepSpeed swaps the states of Adam and AdamW only; optimizer.type is {optimizer.value}",
            "set offload.optimizer_device=cpu, or choose optimizer=adamw",
        )


@rule("optimizer-adam-lr", "only Muon has a second learning rate", Severity.info)
def adam_learning_rate(context: RuleContext) -> Iterator[Finding]:
    """It is that of the parameters which Muon leaves to AdamW."""
    optimizer = context.config.optimizer
    if optimizer.adam_lr is not None and optimizer.type is not OptimizerType.Muon:
        yield info(
            "optimizer-adam-lr",
            "optimizer.adam_lr",
            f"{optimizer.adam_lr} has no effect with optimizer.type={optimizer.type.value}",
            "set optimizer.adam_lr=null",
        )
