"""Rules about offload. DeepSpeed accepts most of what is wrong here in silence and does something else."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from orchestrator.config.enums import OffloadDevice
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.memory.nvme import parameters_on_disk
from orchestrator.planning.memory.shape import largest_parameter
from orchestrator.planning.memory.states import device_optimizer_elements, num_sub_groups
from orchestrator.planning.parameter_names import named_parameters
from orchestrator.planning.parameters import ceil_divide
from orchestrator.planning.rules.registry import Fact, RuleContext, rule
from orchestrator.units import DTYPE_BYTES, MIB, format_bytes


@rule("offload-optimizer-stage", "optimizer offload needs ZeRO stage 1", Severity.error, concerns_memory=True)
def optimizer_stage(context: RuleContext) -> Iterator[Finding]:
    """At stage 0 the states would stay on the device."""
    device = context.config.offload.optimizer_device
    if device is not OffloadDevice.none and context.config.zero.stage == 0:
        yield error(
            "offload-optimizer-stage",
            "offload.optimizer_device",
            f"{device.value} needs ZeRO stage 1 or higher, and zero.stage=0",
            "set zero.stage=1, or offload.optimizer_device=none",
        )


@rule("offload-param-stage", "parameter offload needs ZeRO stage 3", Severity.error, concerns_memory=True)
def param_stage(context: RuleContext) -> Iterator[Finding]:
    """Below stage 3 the parameters would stay on the device."""
    device, stage = context.config.offload.param_device, context.config.zero.stage
    if device is not OffloadDevice.none and stage < 3:
        yield error(
            "offload-param-stage",
            "offload.param_device",
            f"{device.value} needs ZeRO stage 3, and zero.stage={stage}",
            "set zero.stage=3, or offload.param_device=none",
        )


@rule("nvme-stage", "NVMe needs ZeRO stage 3", Severity.error, concerns_memory=True)
def nvme_stage(context: RuleContext) -> Iterator[Finding]:
    """At stages 1 and 2 DeepSpeed would keep the optimizer states in host RAM."""
    stage = context.config.zero.stage
    if context.config.offload.optimizer_device is OffloadDevice.nvme and stage in (1, 2):
        yield error(
            "nvme-stage",
            "offload.optimizer_device",
            f"nvme needs ZeRO stage 3, and zero.stage={stage}",
            "set zero.stage=3, or offload.optimizer_device=cpu",
        )


@rule(
    "offload-ratio", "a partial offload is one of the optimizer, to RAM, at ZeRO stage 3", Severity.error, concerns_memory=True
)
def optimizer_ratio(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed refuses it below stage 3, and NVMe takes whole sub-groups only."""
    offload, stage = context.config.offload, context.config.zero.stage
    if offload.optimizer_ratio < 1 and (stage != 3 or offload.optimizer_device is not OffloadDevice.cpu):
        yield error(
            "offload-ratio",
            "offload.optimizer_ratio",
            f"{offload.optimizer_ratio} needs zero.stage=3 and offload.optimizer_device=cpu, and they are {stage} and "
            f"{offload.optimizer_device.value}",
            "set offload.optimizer_ratio=1",
        )


@rule("offload-ratio-groups", "a partial offload leaves a sub-group on the device", Severity.warning, Fact.model, Fact.layout)
def optimizer_ratio_groups(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed rounds (1 - ratio) of the sub-groups down, and one sub-group is ``zero.sub_group_size`` elements."""
    settings, layout = context.settings, context.layout
    partial = 0 < settings.optimizer_ratio < 1 and settings.zero_stage == 3
    if not partial or settings.offload_optimizer_device is not OffloadDevice.cpu or settings.sub_group_size < 1:
        return
    shard = context.model.num_parameters // (layout.tensor_parallel_size * layout.data_parallel_size)
    if device_optimizer_elements(settings, shard=shard) == 0:
        groups = num_sub_groups(settings, shard=shard)
        wanted = max(1, shard // 16)
        yield warning(
            "offload-ratio-groups",
            "offload.optimizer_ratio",
            f"{settings.optimizer_ratio} of {groups} sub-groups, rounded up, is all of them: nothing stays on the device",
            f"set zero.sub_group_size={wanted}",
        )


@rule("nvme-path", "NVMe needs a folder on a local disk", Severity.error)
def nvme_path(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed notices a missing path only when it writes, and the path must be the same on every host."""
    offload = context.config.offload
    used = [name for name in ("optimizer_device", "param_device") if getattr(offload, name) is OffloadDevice.nvme]
    if used and not offload.nvme_path:
        named = " and ".join(f"offload.{name}" for name in used)
        yield error(
            "nvme-path",
            "offload.nvme_path",
            f"{named} is nvme, and there is no path to a disk",
            "set offload.nvme_path=/a/folder/on/a/local/nvme/disk",
        )
    if not used and offload.nvme_path:
        yield info(
            "nvme-path", "offload.nvme_path", "it has no effect: nothing is offloaded to nvme", "set offload.nvme_path=null"
        )


@rule("nvme-prefetch", "parameters on NVMe are not fetched ahead", Severity.error)
def nvme_prefetch(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed 0.19 fetches a parameter twice then, and dies in the second step on a swap buffer that is already assigned."""
    ahead = context.config.zero.stage3_prefetch_bucket_size
    if context.config.offload.param_device is OffloadDevice.nvme and context.config.zero.stage == 3 and ahead > 0:
        yield error(
            "nvme-prefetch",
            "zero.stage3_prefetch_bucket_size",
            f"{ahead} elements are fetched ahead, which fails with offload.param_device=nvme in the second step",
            "set zero.stage3_prefetch_bucket_size=0",
        )


@rule("nvme-param-buffer", "the largest parameter partition fits in a swap buffer", Severity.error, Fact.model, Fact.layout)
def nvme_param_buffer(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed refuses a larger one when it starts; it is the token embedding in most models."""
    offload = context.config.offload
    if offload.param_device is not OffloadDevice.nvme or context.config.zero.stage != 3:
        return
    model, layout = context.model, context.layout
    largest = largest_parameter(model, tensor_parallel_size=layout.tensor_parallel_size)
    partition = ceil_divide(largest, layout.data_parallel_size)
    if partition > offload.param_buffer_size:
        yield error(
            "nvme-param-buffer",
            "offload.param_buffer_size",
            f"the largest parameter partition has {partition} elements, a buffer {offload.param_buffer_size}",
            f"set offload.param_buffer_size={partition}: {offload.param_buffer_count} buffers take "
            f"{format_bytes(offload.param_buffer_count * partition * DTYPE_BYTES[context.settings.dtype])} of RAM a rank",
        )


@rule("nvme-live-parameters", "parameters from NVMe are let go after each use", Severity.error, Fact.model, Fact.layout)
def nvme_live_parameters(context: RuleContext) -> Iterator[Finding]:
    """A gathered parameter holds its swap buffer until it is released; without a free one DeepSpeed fails in the first step.

    Partitions under 1 MiB stay in host RAM and need none (``swap_tensor/partitioned_param_swapper.py``).
    """
    settings, layout = context.settings, context.layout
    if settings.offload_param_device is not OffloadDevice.nvme or settings.zero_stage != 3:
        return
    shards = layout.tensor_parallel_size * layout.data_parallel_size
    smallest_swapped = MIB // DTYPE_BYTES[settings.dtype] * shards
    swapped = [size for size in (prod(one.shape) for one in named_parameters(context.model)) if size >= smallest_swapped]
    live = min(settings.stage3_max_live_parameters, settings.stage3_max_reuse_distance) * layout.tensor_parallel_size
    if len(swapped) > settings.param_buffer_count and live >= settings.param_buffer_count * min(swapped):
        yield error(
            "nvme-live-parameters",
            "zero.stage3_max_live_parameters",
            f"{settings.stage3_max_live_parameters} elements may stay gathered, and {len(swapped)} parameters would share "
            f"offload.param_buffer_count={settings.param_buffer_count} swap buffers",
            "set zero.stage3_max_live_parameters=0 zero.stage3_max_reuse_distance=0",
        )


@rule("nvme-params-stay", "parameters that are offloaded to NVMe get there", Severity.warning, Fact.model, Fact.layout)
def nvme_params_stay(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed keeps the first ``max_in_cpu`` elements of a rank in host RAM, unsaid."""
    settings, layout = context.settings, context.layout
    if settings.offload_param_device is not OffloadDevice.nvme or settings.zero_stage != 3:
        return
    shard = ceil_divide(context.model.num_parameters, layout.tensor_parallel_size * layout.data_parallel_size)
    if parameters_on_disk(settings, shard=shard) == 0:
        yield warning(
            "nvme-params-stay",
            "offload.param_max_in_cpu",
            f"{settings.param_max_in_cpu} elements stay in host RAM, and a rank has {shard}: no parameter goes to the disk",
            "set offload.param_max_in_cpu=0, or offload.param_device=cpu",
        )
