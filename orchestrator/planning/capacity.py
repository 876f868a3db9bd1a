"""Does the estimate fit into what the hosts have, and if not, where, by how much, and because of what.

An estimate above a capacity is an error. One below it that leaves less free than ``planner.memory_margin`` is a warning: it is
an estimate, and the run may well fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from orchestrator.config.enums import Accelerator, OffloadDevice, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, Severity, error, warning
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.estimate import DeviceMemory, MemoryEstimate
from orchestrator.planning.memory.hosts import HostMemory, NvmeMemory
from orchestrator.planning.partition import PARAMETERS, UNIFORM
from orchestrator.units import format_bytes

DEVICE_MEMORY = "device-memory"
HOST_MEMORY = "host-memory"
NVME_CAPACITY = "nvme-capacity"
CAPACITY_RULES = frozenset({DEVICE_MEMORY, HOST_MEMORY, NVME_CAPACITY})
"""Rules whose errors say that a legal run does not fit, and whose warnings that it does so narrowly."""


def usable_bytes(capacity_bytes: int, margin: float) -> int:
    """What of a capacity may be planned for."""
    return int(capacity_bytes * (1 - margin))


def is_narrow(findings: Iterable[Finding]) -> bool:
    """Whether an estimate lies inside the margin: below a capacity, and above what is planned for."""
    return any(finding.rule in CAPACITY_RULES and finding.severity is Severity.warning for finding in findings)


def capacity_findings(config: RunConfig, layout: ParallelLayout, memory: MemoryEstimate) -> Iterator[Finding]:
    """One finding each for the worst class of ranks, the worst host and the worst disk that do not fit, or narrowly.

    Ranks on a CPU that has no device memory of its own share their host's RAM, which is checked as a whole.
    """
    shares_ram = config.cluster.accelerator is Accelerator.cpu and config.cluster.device_memory_gib is None
    if not shares_ram:
        yield from _device_finding(config, layout, memory.device)
    yield from _host_finding(config, memory.host)
    yield from _nvme_finding(config, memory.nvme)


def _device_finding(config: RunConfig, layout: ParallelLayout, classes: tuple[DeviceMemory, ...]) -> Iterator[Finding]:
    worst = max(classes, key=lambda entry: entry.device_bytes - entry.capacity_bytes)
    margin = config.planner.memory_margin
    if worst.device_bytes <= usable_bytes(worst.capacity_bytes, margin):
        return
    over = [entry for entry in classes if entry.device_bytes > entry.capacity_bytes]
    ranks = f"{worst.ranks[0]}-{worst.ranks[-1]}" if len(worst.ranks) > 1 else f"{worst.ranks[0]}"
    if len(classes) > 1:
        where = f"each rank of stage {worst.stage} ({ranks})"
    else:
        where = f"each of ranks {ranks}" if len(worst.ranks) > 1 else f"rank {ranks}"
    others = f"; {len(over) - 1} more of the {len(classes)} stages do not fit either" if len(over) > 1 else ""
    need = f"{where} needs {_compared(worst.device_bytes, worst.capacity_bytes, margin)} of {config.cluster.device_name}"
    measured = "" if worst.measured_on is None else f" as measured on {worst.measured_on}"
    message = f"{need}{measured}; it peaks in the {worst.phase.value} phase: {_largest(worst.components)}{others}"
    remedies = ", ".join(_device_remedies(config, layout))
    if over:
        yield error(DEVICE_MEMORY, "cluster.device_memory_gib", message, f"try {remedies}")
    else:
        yield warning(DEVICE_MEMORY, "cluster.device_memory_gib", message, f"{_NARROW}, try {remedies}")


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
    worst = max(hosts, key=lambda entry: entry.peak_bytes - entry.capacity_bytes)
    margin = config.planner.memory_margin
    if worst.peak_bytes <= usable_bytes(worst.capacity_bytes, margin):
        return
    over = [entry for entry in hosts if entry.peak_bytes > entry.capacity_bytes]
    others = f"; {len(over) - 1} more of the {len(hosts)} hosts do not fit either" if len(over) > 1 else ""
    phases = {"a step": worst.step_bytes, "saving a checkpoint": worst.save_bytes, "the start": worst.start_bytes}
    peak = max(phases, key=lambda phase: phases[phase])
    need = f"{worst.host} needs {_compared(worst.peak_bytes, worst.capacity_bytes, margin)} of RAM"
    held = ":" if peak == "a step" else "; a step holds"
    message = f"{need}; it peaks in {peak}{held} {_largest(worst.components)}{others}"
    remedies = ", ".join(_host_remedies(config))
    if over:
        yield error(HOST_MEMORY, "cluster.host_memory_gib", message, f"try {remedies}")
    else:
        yield warning(HOST_MEMORY, "cluster.host_memory_gib", message, f"{_NARROW}, try {remedies}")


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
    written = [entry for entry in disks if entry.bytes]
    if not written:
        return
    worst = max(written, key=lambda entry: entry.bytes - (entry.capacity_bytes or 0))
    if worst.capacity_bytes is None:
        yield warning(
            "nvme-unknown",
            "cluster.nvme_gib",
            f"{format_bytes(worst.bytes)} are written to the disk of {worst.host}, whose size is unknown",
            "set cluster.nvme_gib to its free space",
        )
        return
    margin = config.planner.memory_margin
    message = f"{worst.host} needs {_compared(worst.bytes, worst.capacity_bytes, margin)} of NVMe"
    remedies = "more hosts (cluster.hosts), or offload.optimizer_device=cpu"
    if worst.bytes > worst.capacity_bytes:
        yield error(NVME_CAPACITY, "cluster.nvme_gib", message, f"try {remedies}")
    elif worst.bytes > usable_bytes(worst.capacity_bytes, margin):
        yield warning(NVME_CAPACITY, "cluster.nvme_gib", message, f"{_NARROW}, try {remedies}")


_NARROW = "nothing if you trust the estimate; for more room"


def _compared(needed: int, capacity: int, margin: float) -> str:
    """What is needed, and what it is short of: the capacity itself, or the margin that is to stay free."""
    if needed > capacity:
        return f"{format_bytes(needed)}, {format_bytes(needed - capacity)} more than the {format_bytes(capacity)}"
    free = capacity - needed
    left = f"leaves {format_bytes(free)} ({free / capacity:.1%}) free, less than planner.memory_margin={margin},"
    return f"{format_bytes(needed)}, which {left} of the {format_bytes(capacity)}"


def _largest(components: Mapping[str, int]) -> str:
    """The three largest parts."""
    names = sorted(components, key=lambda component: -components[component])[:3]
    return ", ".join(f"{name} {format_bytes(components[name])}" for name in names)
