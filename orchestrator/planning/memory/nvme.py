"""Bytes that ZeRO-Infinity writes to NVMe."""

from __future__ import annotations

from orchestrator.config.enums import OffloadDevice
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.broadcast import larger
from orchestrator.planning.memory.states import FP32_BYTES, MASTER_BYTES, moment_bytes
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.units import DTYPE_BYTES


def nvme_bytes(
    settings: DeepSpeedSettings,
    *,
    num_parameters: Size,
    data_parallel_size: Size,
    num_trainable: Size | None = None,
    num_muon: Size = 0,
) -> Size:
    """What one rank keeps on its host's disk; only stage 3 uses one. ``num_trainable``: all, if it is not given.

    An offloaded optimizer writes the master copy, its moments and the fp32 gradient of its shard; offloaded parameters
    what does not fit in ``max_in_cpu`` elements (``zero/stage3.py``, ``swap_tensor/``).
    """
    if settings.zero_stage < 3:
        return 0 * num_parameters
    shard = ceil_divide(num_parameters, data_parallel_size)
    total = 0 * shard
    if settings.offload_optimizer_device is OffloadDevice.nvme:
        trained = shard if num_trainable is None else ceil_divide(num_trainable, data_parallel_size)
        total = total + trained * (MASTER_BYTES + FP32_BYTES)
        total = total + moment_bytes(settings, elements=trained, num_muon=ceil_divide(num_muon, data_parallel_size))
    if settings.offload_param_device is OffloadDevice.nvme:
        total = total + parameters_on_disk(settings, shard=shard) * DTYPE_BYTES[settings.dtype]
    return total


def parameters_on_disk(settings: DeepSpeedSettings, *, shard: Size) -> Size:
    """Elements of a rank's parameter shard beyond those that NVMe offload keeps in host RAM."""
    return larger(shard - settings.param_max_in_cpu, 0)
