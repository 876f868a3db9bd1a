"""Does the estimate fit into what the hosts have, and if not, where, by how much, and because of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.config.enums import Accelerator, OffloadDevice, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error, warning
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.estimate import DeviceMemory, MemoryEstimate
from orchestrator.planning.memory.hosts import HostMemory, NvmeMemory
from orchestrator.planning.partition import PARAMETERS, UNIFORM
from orchestrator.units import format_bytes

DEVICE_MEMORY = "device-memory"
HOST_MEMORY = "host-memory"
NVME_CAPACITY = "nvme-capacity"
CAPACITY_RULES = frozenset({DEVICE_MEMORY, HOST_MEMORY, NVME_CAPACITY})
"""Rules whose errors say that a legal run does not fit."""


def usable_bytes(capacity_bytes: int, margin: float) -> int:
    """What of a capacity may be planned for."""
    return int(capacity_bytes * (1 - margin))


def capacity_findings(config: RunConfig, layout: ParallelLayout, memory: MemoryEstimate) -> Iterator[Finding]:
    """One finding each for the worst class of ranks, the worst host and the worst disk that do not fit.

    Ranks on a CPU that has no device memory of its own share their host's RAM, which is checked as a whole.
    """
    shares_ram = config.cluster.accelerator is Accelerator.cpu and config.cluster.device_memory_gib is None
    if not shares_ram:
        yield from _device_finding(config, layout, memory.device)
    yield from _host_finding(config, memory.host)
    yield from _nvme_finding(config, memory.nvme)


def _device_finding(config: RunConfig, layout: ParallelLayout, classes: tuple[DeviceMemory, ...]) -> Iterator[Finding]:
    usable = usable_bytes(classes[0].capacity_bytes, config.planner.memory_margin)
    over = [entry for entry in classes if entry.device_bytes > usable]
    if not over:
        return
    worst = max(over, key=lambda entry: entry.device_bytes)
    ranks = f"{worst.ranks[0]}-{worst.ranks[-1]}" if len(worst.ranks) > 1 else f"{worst.ranks[0]}"
    if len(classes) > 1:
        where = f"each rank of stage {worst.stage} ({ranks})"
    else:
        where = f"each of ranks {ranks}" if len(worst.ranks) > 1 else f"rank {ranks}"
    others = "" if len(over) == 1 else f"; {len(over) - 1} more of the {len(classes)} stages do not fit either"
    phase = worst.phase.value
    yield error(
        DEVICE_MEMORY,
        "cluster.device_memory_gib",
        f"{where} needs {_misses(worst.device_bytes, usable, worst.capacity_bytes, config)} of {config.cluster.device_name}; "
        f"it peaks in the {phase} phase, and {_largest(worst.components)}{others}",
        f"try {', '.join(_device_remedies(config, layout))}",
    )


def _device_remedies(config: RunConfig, layout: ParallelLayout) -> Iterator[str]:
    """Changes that this configuration has not made yet, the cheapest in speed first."""
    pipeline = layout.pipeline_parallel_size > 1
    highest = 1 if pipeline else 3
    if layout.tensor_parallel_size > 1 and not config.parallelism.sequence_parallel:
        yield "parallelism.sequence_parallel=true"
    if config.activation_checkpointing.policy in (RecomputePolicy.none, RecomputePolicy.selective):
        yield "activation_checkpointing.policy=full"
    if layout.train_micro_batch_size_per_gpu > 1:
        yield "training.train_micro_batch_size_per_gpu=1"
    if config.zero.stage < highest and layout.data_parallel_size > 1:
        yield f"zero.stage={highest}"
    if config.offload.optimizer_device is OffloadDevice.none:
        yield f"offload.optimizer_device=cpu at zero.stage={max(highest, config.zero.stage)}"
    if config.offload.param_device is OffloadDevice.none and not pipeline:
        yield "offload.param_device=cpu at zero.stage=3"
    if pipeline and config.parallelism.partition_method in (UNIFORM, PARAMETERS):
        yield "parallelism.partition_method=balanced"
    if pipeline:
        yield "more pipeline stages (parallelism.pipeline_parallel_size)"
    yield "more devices (cluster.hosts)"


def _host_finding(config: RunConfig, hosts: tuple[HostMemory, ...]) -> Iterator[Finding]:
    usable = usable_bytes(hosts[0].capacity_bytes, config.planner.memory_margin)
    over = [entry for entry in hosts if entry.peak_bytes > usable]
    if not over:
        return
    worst = max(over, key=lambda entry: entry.peak_bytes)
    others = "" if len(over) == 1 else f"; {len(over) - 1} more of the {len(hosts)} hosts do not fit either"
    phases = {"a step": worst.step_bytes, "saving a checkpoint": worst.save_bytes, "the start": worst.start_bytes}
    peak = max(phases, key=lambda phase: phases[phase])
    yield error(
        HOST_MEMORY,
        "cluster.host_memory_gib",
        f"{worst.host} needs {_misses(worst.peak_bytes, usable, worst.capacity_bytes, config)} of RAM; "
        f"it peaks in {peak}, and {_largest(worst.components)}{others}",
        f"try {', '.join(_host_remedies(config))}",
    )


def _host_remedies(config: RunConfig) -> Iterator[str]:
    if config.offload.pin_memory and OffloadDevice.cpu in (config.offload.optimizer_device, config.offload.param_device):
        yield "offload.pin_memory=false (pinned blocks are rounded up to powers of two)"
    if config.cluster.accelerator is Accelerator.cpu:
        yield "fewer processes on each host (cluster.devices_per_host)"
        if config.activation_checkpointing.policy in (RecomputePolicy.none, RecomputePolicy.selective):
            yield "activation_checkpointing.policy=full"
    if config.activation_checkpointing.cpu_checkpointing:
        yield "activation_checkpointing.cpu_checkpointing=false"
    yield "more hosts (cluster.hosts)"


def _nvme_finding(config: RunConfig, disks: tuple[NvmeMemory, ...]) -> Iterator[Finding]:
    worst = max(disks, key=lambda entry: entry.bytes)
    if worst.bytes == 0:
        return
    if worst.capacity_bytes is None:
        yield warning(
            NVME_CAPACITY,
            "cluster.nvme_gib",
            f"{format_bytes(worst.bytes)} are written to the disk of {worst.host}, whose size is unknown",
            "set cluster.nvme_gib to its free space",
        )
        return
    usable = usable_bytes(worst.capacity_bytes, config.planner.memory_margin)
    if worst.bytes > usable:
        yield error(
            NVME_CAPACITY,
            "cluster.nvme_gib",
            f"{worst.host} needs {_misses(worst.bytes, usable, worst.capacity_bytes, config)} of NVMe",
            "try more hosts (cluster.hosts), or offload.optimizer_device=cpu",
        )


def _misses(needed: int, usable: int, capacity: int, config: RunConfig) -> str:
    margin = config.planner.memory_margin
    kept = f" that planner.memory_margin={margin} leaves" if margin else ""
    over = f"{format_bytes(needed - usable)} more than the {format_bytes(usable)}{kept}"
    return f"{format_bytes(needed)}, {over} of the {format_bytes(capacity)}"


def _largest(components: Mapping[str, int]) -> str:
    name = max(components, key=lambda component: components[component])
    return f"{name} are the largest part with {format_bytes(components[name])}"
