"""What the data-parallel ranks of one stage tell each other, when, and whether anything runs beside it.

What DeepSpeed 0.19.8 does (``deepspeed/runtime/zero``, ``runtime/pipe/engine.py``):

- stage 0 and BF16_Optimizer reduce all gradients once a step, after the last backward pass
- stage 1 the same in the last backward pass; its "reduce-scatter" is an all-reduce of slices (``average_tensor``)
- stages 2 and 3 reduce in the backward pass of every micro-batch
- stages 1 and 2 gather the parameters after the update, stage 3 before each pass, one module ahead
- beside the computation only with ``overlap_comm``, and never in a pipeline
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.config.enums import OffloadDevice
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.broadcast import choose, smaller
from orchestrator.planning.cost.groups import all_reduce_seconds, gather_seconds
from orchestrator.planning.cost.placement import Placement
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.units import DTYPE_BYTES

GATHERED_MODULES = 4
"""Modules of a layer with matrices: ZeRO-3 fetches each before it runs, and no more of the next than fits its bucket."""


class Traffic(NamedTuple):
    """Seconds of communication of one stage's data-parallel group."""

    forward_gather: Size
    """ZeRO-3: in each forward pass."""
    backward_gather: Size
    backward_reduction: Size
    """ZeRO-2 and 3: in each backward pass."""
    boundary_reduction: Size
    """Once, in or after the last backward pass."""
    parameter_gather: Size
    """Once, after the update."""


def data_parallel_traffic(
    settings: DeepSpeedSettings,
    *,
    parameters: Size,
    num_layers: int,
    layer_parameters: Size,
    recomputes_layers: bool,
    group: Placement,
    speeds: Speeds,
) -> Traffic:
    """The traffic of a rank with ``parameters`` elements, ``num_layers`` layers among them."""
    none = 0.0
    sent_bytes = parameters * DTYPE_BYTES[settings.communication_data_type]
    whole_bytes = parameters * DTYPE_BYTES[settings.dtype]
    if settings.zero_stage >= 3:
        bucket = max(settings.stage3_prefetch_bucket_size, 1)
        messages = num_layers * smaller(ceil_divide(layer_parameters, bucket), GATHERED_MODULES)
        ring = {"messages": messages, "network": speeds.zero3_network_bandwidth}
        gather = gather_seconds(whole_bytes, group, speeds, **ring) + _fetch_seconds(settings, whole_bytes, group, speeds)
        # A layer that is computed again is released and fetched once more before its backward pass if it is too large to keep.
        again = choose(layer_parameters > settings.stage3_max_reuse_distance, 2, 1) if recomputes_layers else 1
        return Traffic(
            forward_gather=gather,
            backward_gather=again * gather,
            backward_reduction=gather_seconds(sent_bytes, group, speeds, **ring),
            boundary_reduction=none,
            parameter_gather=none,
        )
    reduction = all_reduce_seconds(sent_bytes, group, speeds, messages=ceil_divide(parameters, settings.reduce_bucket_size))
    gather = gather_seconds(whole_bytes, group, speeds, messages=ceil_divide(parameters, settings.allgather_bucket_size))
    every_pass = settings.zero_stage == 2
    return Traffic(
        forward_gather=none,
        backward_gather=none,
        backward_reduction=reduction if every_pass else none,
        boundary_reduction=none if every_pass else reduction,
        parameter_gather=gather if settings.sharding_stage else none,
    )


def _fetch_seconds(settings: DeepSpeedSettings, whole_bytes: Size, group: Placement, speeds: Speeds) -> Size:
    """Bringing a rank's own shard from where it is offloaded."""
    shard = whole_bytes / group.num_ranks
    match settings.offload_param_device:
        case OffloadDevice.none:
            return 0.0
        case OffloadDevice.cpu:
            return shard / speeds.host_link_bandwidth
        case OffloadDevice.nvme:
            return shard / speeds.host_link_bandwidth + shard * speeds.slots / speeds.nvme_read_bandwidth
