"""Rules about ZeRO."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.memory.shape import largest_parameter
from orchestrator.planning.memory.states import num_sub_groups
from orchestrator.planning.parameters import ceil_divide
from orchestrator.planning.rules.registry import Fact, RuleContext, rule


@rule("zero-single-rank", "ZeRO has several data-parallel ranks to shard over", Severity.warning, Fact.layout)
def zero_single_rank(context: RuleContext) -> Iterator[Finding]:
    """Over one rank ZeRO saves nothing by sharding; it is only worth its offload then."""
    stage = context.config.zero.stage
    offloads = context.settings.offloads_optimizer or context.settings.offloads_parameters
    if stage == 0 or context.layout.data_parallel_size > 1 or offloads:
        return
    message = f"ZeRO stage {stage} shards over one data-parallel rank, which saves no memory"
    if stage == 3:
        yield warning("zero-single-rank", "zero.stage", f"{message} and slows every layer", "set zero.stage=1, or add devices")
    elif context.layout.world_size > 1:
        taken = f"tensor and pipeline parallelism take all {context.layout.world_size} devices"
        kept = (
            "nothing, stage 1 still sums bf16 gradients in fp32" if context.settings.dtype is Precision.bf16 else "zero.stage=0"
        )
        fix = f"{kept}; or smaller parallel sizes, or more devices"
        yield warning("zero-single-rank", "zero.stage", f"{message}: {taken}", fix)
    else:
        yield info("zero-single-rank", "zero.stage", message, "nothing, or add devices")


@rule("zero-allgather-bucket", "the all-gather bucket is even at stages 1 and 2", Severity.error)
def allgather_bucket(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed's stages 1 and 2 assert it: pieces start at 4-byte boundaries."""
    size = context.config.zero.allgather_bucket_size
    if context.config.zero.stage in (1, 2) and size % 2:
        yield error(
            "zero-allgather-bucket",
            "zero.allgather_bucket_size",
            f"{size} is odd",
            f"set zero.allgather_bucket_size={size + 1}",
        )


@rule("zero-round-robin", "round_robin_gradients works at stages 1 and 2 with an offloaded optimizer", Severity.info)
def round_robin(context: RuleContext) -> Iterator[Finding]:
    """Elsewhere it spreads copies that do not happen."""
    stage, device = context.config.zero.stage, context.config.offload.optimizer_device
    useful = stage in (1, 2) and device is not OffloadDevice.none
    if context.config.zero.round_robin_gradients and not useful:
        yield info(
            "zero-round-robin",
            "zero.round_robin_gradients",
            f"true has no use at stage {stage} with offload.optimizer_device={device.value}",
            "set zero.round_robin_gradients=false",
        )


MOST_SUB_GROUPS = 1000
"""Sub-groups of a rank's optimizer from which a step is mostly spent on starting them."""


@rule("zero-persistence", "ZeRO stage 3 shards some parameter", Severity.warning, Fact.model, Fact.layout)
def persistence(context: RuleContext) -> Iterator[Finding]:
    """Parameters with at most so many elements stay whole on every rank."""
    threshold = context.config.zero.stage3_param_persistence_threshold
    largest = largest_parameter(context.model, tensor_parallel_size=context.layout.tensor_parallel_size)
    if context.config.zero.stage == 3 and largest <= threshold:
        yield warning(
            "zero-persistence",
            "zero.stage3_param_persistence_threshold",
            f"{threshold} keeps every parameter whole on every rank, the largest has {largest} elements: stage 3 shards none",
            f"set zero.stage3_param_persistence_threshold={min(100_000, largest - 1)}, or zero.stage=2",
        )


@rule("zero-sub-groups", "the stage-3 optimizer works in large pieces", Severity.warning, Fact.model, Fact.layout)
def sub_groups(context: RuleContext) -> Iterator[Finding]:
    """Each sub-group is an optimizer call of its own, and a transfer with an offloaded optimizer."""
    settings, layout = context.settings, context.layout
    if settings.zero_stage != 3 or settings.sub_group_size < 1:
        return
    shard = ceil_divide(context.model.num_parameters, layout.tensor_parallel_size * layout.data_parallel_size)
    groups = num_sub_groups(settings, shard=shard)
    if groups > MOST_SUB_GROUPS:
        yield warning(
            "zero-sub-groups",
            "zero.sub_group_size",
            f"{settings.sub_group_size} cuts the {shard} elements of a rank into {groups} sub-groups, updated one by one",
            f"set zero.sub_group_size={max(shard // 16, settings.sub_group_size + 1)} or more",
        )
