"""What was measured on the hosts, as the capacities of a new plan: never more than is configured, less where there is less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, warning
from orchestrator.launch.preflight.facts import HostFacts
from orchestrator.launch.preflight.judgement import NVME_PATH, used_devices
from orchestrator.planning.cluster_spec import ClusterSpec, Host
from orchestrator.units import format_bytes

_WORTH_SAYING = 0.98
"""A measured size below this share of the configured one is pointed out: every driver keeps a little for itself."""
_RULE = "measured-capacity"


def measured_hosts(config: RunConfig, cluster: ClusterSpec, facts: Mapping[str, HostFacts]) -> tuple[Host, ...]:
    """The hosts with what they really have: free device memory, RAM within control groups, room for swap files, in bytes."""
    return tuple(_measured(config, cluster, host, facts[host.name]) if host.name in facts else host for host in cluster.hosts)


def capacity_remarks(config: RunConfig, cluster: ClusterSpec, measured: Sequence[Host]) -> Iterator[tuple[str, Finding]]:
    """Each host that has less than the configuration says, with what the plan takes instead."""
    configured = {
        "cluster.device_memory_gib": None if cluster.shares_host_memory else cluster.device_memory_bytes,
        "cluster.host_memory_gib": cluster.host_memory_bytes if config.cluster.host_memory_gib is not None else None,
        "cluster.nvme_gib": cluster.nvme_bytes,
    }
    for host in measured:
        found = (host.device_memory_bytes, host.host_memory_bytes, host.nvme_bytes)
        for (option, expected), size in zip(configured.items(), found, strict=True):
            if expected is not None and size is not None and size < _WORTH_SAYING * expected:
                message = f"{format_bytes(size)} of the {format_bytes(expected)} are there: the plan takes what is there"
                yield host.name, warning(_RULE, option, message, "free what others use, or correct the configuration")


def busy_memory(facts: Mapping[str, HostFacts], needed_bytes: Mapping[str, int]) -> Iterator[tuple[str, Finding]]:
    """Each host of whose RAM others use so much that the run may not get what it needs, bytes by host."""
    for host, entry in facts.items():
        if entry.memory is not None and entry.memory.available_bytes < needed_bytes[host]:
            free = f"{format_bytes(entry.memory.available_bytes)} of its {format_bytes(entry.memory.limit_bytes)} RAM are free"
            message = f"{free}, and the run needs {format_bytes(needed_bytes[host])} there"
            yield host, warning("busy-memory", "cluster.host_memory_gib", message, "end what else runs there, or wait for it")


def _measured(config: RunConfig, cluster: ClusterSpec, host: Host, facts: HostFacts) -> Host:
    free = [facts.devices[number].free_bytes for number in used_devices(facts, host)]
    on_device = config.cluster.accelerator is Accelerator.cuda
    device = min((size for size in free if size is not None), default=None) if on_device else None
    swap = facts.folders.get(NVME_PATH)
    return replace(
        host,
        device_memory_bytes=_lower(device, cluster.device_memory_bytes),
        # left open it is this machine's, and means nothing for another host
        host_memory_bytes=_lower(
            facts.memory.limit_bytes if facts.memory is not None else None,
            cluster.host_memory_bytes if config.cluster.host_memory_gib is not None else None,
        ),
        nvme_bytes=_lower(swap.free_bytes if swap is not None else None, cluster.nvme_bytes),
    )


def _lower(measured: int | None, configured: int | None) -> int | None:
    """The measured size where it is lower than the configured, or nothing is configured."""
    if measured is None or (configured is not None and measured >= configured):
        return None
    return measured
