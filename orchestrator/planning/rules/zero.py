"""Rules about ZeRO."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import OffloadDevice
from orchestrator.findings import Finding, Severity, error, info, warning
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
