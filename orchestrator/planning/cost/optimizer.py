"""The optimizer's update and what is offloaded: memory traffic of the device, processors, PCI Express, disks.

The processors and the disks of a host are shared by all of its ranks. Sizes may be arrays.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.config.enums import OffloadDevice
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.memory.states import FP32_BYTES, MASTER_BYTES, moment_bytes
from orchestrator.planning.parameters import Size
from orchestrator.units import DTYPE_BYTES

GRADIENT_MOVES = 3
"""How often the device reads the gradients in a step: for the norm and the overflow check, to unscale, to update."""


class OptimizerSeconds(NamedTuple):
    """Parts of the update, one after the other: DeepSpeed overlaps disk and processors only between sub-groups."""

    device: Size
    processors: Size
    host_copies: Size
    """Gradients to the host, parameters back."""
    disk_reads: Size
    disk_writes: Size

    @property
    def total(self) -> Size:
        """The whole update."""
        return self.device + self.processors + self.host_copies + self.disk_reads + self.disk_writes


def optimizer_seconds(settings: DeepSpeedSettings, *, elements: Size, speeds: Speeds) -> OptimizerSeconds:
    """The update of ``elements`` elements on each rank."""
    share = settings.optimizer_ratio if settings.offloads_optimizer else 0.0
    there, here = elements * share, elements * (1 - share)
    dtype, gradient = DTYPE_BYTES[settings.dtype], DTYPE_BYTES[settings.grad_accum_dtype]
    state = MASTER_BYTES + moment_bytes(settings, elements=1)
    on_disk = there if settings.offload_optimizer_device is OffloadDevice.nvme else 0 * there
    parameters_on_disk = elements if settings.offload_param_device is OffloadDevice.nvme else 0 * elements
    moved = 2 * state + GRADIENT_MOVES * gradient + FP32_BYTES + dtype
    return OptimizerSeconds(
        device=here * moved / speeds.memory_bandwidth,
        processors=there * speeds.slots / speeds.host_adam_rate,
        host_copies=there * (gradient + dtype) / speeds.host_link_bandwidth,
        disk_reads=on_disk * state * speeds.slots / speeds.nvme_read_bandwidth,
        disk_writes=(on_disk * state + parameters_on_disk * dtype) * speeds.slots / speeds.nvme_write_bandwidth,
    )
