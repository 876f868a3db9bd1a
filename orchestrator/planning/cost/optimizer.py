"""The optimizer's update and what is offloaded: memory traffic on the device, processors and PCI Express, disks.

The processors, the RAM and the disks of a host are shared by all of its ranks. Sizes may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import OffloadDevice
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import DeliveredSpeed
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.memory.states import FP32_BYTES, MASTER_BYTES, moment_bytes
from orchestrator.planning.parameters import Size
from orchestrator.units import DTYPE_BYTES

HOST_ADAM_PARAMETERS_PER_SECOND = 1.76e9
"""Where the cluster does not say: 4 ranks of 0.44 G parameters a second (derived from DeepSpeed's ZenFlow post, 4 A100)."""
NVME_BYTES_PER_SECOND = (10e9, 5e9)
"""Reads and writes of four Gen4 drives (DeepSpeed's DeepNVMe post), where the cluster does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSeconds:
    """After the last backward pass of a step, one after the other."""

    device: Size
    """Update on the device."""
    processors: Size
    """Update by the host's processors."""
    copies: Size
    """Gradients to the host and parameters back."""
    disk_reads: Size
    disk_writes: Size


def optimizer_seconds(
    settings: DeepSpeedSettings, *, elements: Size, speeds: Speeds, delivered: DeliveredSpeed
) -> OptimizerSeconds:
    """The update of ``elements`` elements on each rank."""
    none = 0.0 * elements
    share = settings.optimizer_ratio if settings.offloads_optimizer else 0.0
    there, here = elements * share, elements * (1 - share)
    dtype, gradient = DTYPE_BYTES[settings.dtype], DTYPE_BYTES[settings.grad_accum_dtype]
    state = MASTER_BYTES + moment_bytes(settings, elements=1)
    moved = 2 * state + 3 * gradient + dtype + 2 * FP32_BYTES
    on_disk = settings.offload_optimizer_device is OffloadDevice.nvme
    read, write = NVME_BYTES_PER_SECOND
    rate = delivered.host_adam_parameters_per_second or HOST_ADAM_PARAMETERS_PER_SECOND
    return OptimizerSeconds(
        device=here * moved / speeds.memory_bandwidth,
        processors=there * speeds.slots / rate,
        copies=there * (gradient + dtype) / speeds.host_link_bandwidth,
        disk_reads=there * state * speeds.slots / (delivered.nvme_read_bandwidth or read) if on_disk else none,
        disk_writes=there * state * speeds.slots / (delivered.nvme_write_bandwidth or write) if on_disk else none,
    )
