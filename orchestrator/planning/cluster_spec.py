"""The hosts and their devices, in bytes and FLOP/s: what the plan may spend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.config.enums import Accelerator, Precision
from orchestrator.config.schema import ClusterConfig
from orchestrator.findings import Finding, error
from orchestrator.planning.device_speeds import DeliveredSpeed, delivered_speed
from orchestrator.units import GB, GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host of the run and its slots: the devices, and so the processes, that it gives."""

    name: str
    slots: int
    devices: tuple[int, ...] | None = None
    """Numbers of the devices on the host, as many as slots; ``None`` = from 0 up."""
    device_memory_bytes: int | None = None
    """What of its fullest device may be used, where that was measured; ``None`` = as the cluster says."""
    host_memory_bytes: int | None = None
    """Its RAM, likewise."""
    nvme_bytes: int | None = None
    """Room on its NVMe disk, likewise."""

    @property
    def device_numbers(self) -> tuple[int, ...]:
        """The numbers of its devices."""
        return tuple(range(self.slots)) if self.devices is None else self.devices


class HostRun(NamedTuple):
    """Consecutive hosts of a cluster that differ in nothing a plan asks for."""

    host: Host
    """The first of them."""
    num_hosts: int


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Hosts that are alike but for their slots and what was measured there. Bandwidths are bytes a second in one direction,
    ``None`` when unknown."""

    name: str
    hosts: tuple[Host, ...]
    accelerator: Accelerator
    device_name: str
    device_memory_bytes: int
    """Memory of one device as torch reports it; without one of its own (CPU), a process's share of the host's RAM."""
    device_context_bytes: int
    """What a process takes of the device before any tensor."""
    shares_host_memory: bool
    """Whether ranks have no memory but their host's RAM."""
    host_memory_bytes: int
    nvme_bytes: int | None
    precisions: frozenset[Precision]
    peak_flops: Mapping[Precision, float]
    """Dense peak of one device, FLOP/s, where known."""
    memory_bandwidth: float | None
    device_link_bandwidth: float | None
    host_link_bandwidth: float | None
    network_bandwidth: float | None
    speed: DeliveredSpeed
    """What of these rates is really reached."""

    @cached_property
    def host_runs(self) -> tuple[HostRun, ...]:
        """The hosts in their order, equal neighbours together."""

        def facts(host: Host) -> tuple[int | None, ...]:
            return host.slots, host.device_memory_bytes, host.host_memory_bytes, host.nvme_bytes

        runs = [list(equal) for _, equal in groupby(self.hosts, key=facts)]
        return tuple(HostRun(run[0], len(run)) for run in runs)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts: the world size."""
        return sum(run.host.slots * run.num_hosts for run in self.host_runs)

    @cached_property
    def devices_per_host(self) -> int:
        """Devices of the host that has most."""
        return max(run.host.slots for run in self.host_runs)

    @property
    def smallest_device_memory_bytes(self) -> int:
        """What every rank has at least."""
        return min((self.device_capacity(host) for host in self.hosts), default=self.device_memory_bytes)

    def device_capacity(self, host: Host) -> int:
        """Memory of one device of ``host``; without one of its own, a process's share of the host's RAM."""
        if host.device_memory_bytes is not None:
            return host.device_memory_bytes
        if self.shares_host_memory and host.host_memory_bytes is not None:
            return host.host_memory_bytes // self.devices_per_host
        return self.device_memory_bytes

    def host_capacity(self, host: Host) -> int:
        """RAM of ``host``."""
        return self.host_memory_bytes if host.host_memory_bytes is None else host.host_memory_bytes

    def nvme_capacity(self, host: Host) -> int | None:
        """Room on the NVMe disk of ``host``; ``None`` when unknown."""
        return self.nvme_bytes if host.nvme_bytes is None else host.nvme_bytes

    def tightest_host(self, ranks: range) -> Host | None:
        """The host with the smallest devices among those that hold ``ranks``; ``None`` where all are as the cluster says."""
        if not self.is_measured:
            return None
        holding, first = [], 0
        for host in self.hosts:
            if first < ranks.stop and first + host.slots > ranks.start:
                holding.append(host)
            first += host.slots
        return min(holding, key=self.device_capacity)

    @cached_property
    def is_measured(self) -> bool:
        """Whether the capacities of its hosts were measured."""
        return any(host.device_memory_bytes is not None or host.host_memory_bytes is not None for host in self.hosts)


def is_loopback(name: str) -> bool:
    """Whether a host name or address means whatever machine it is said on."""
    plain = name.lower().rstrip(".")
    if plain in ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"):
        return True
    try:
        return ip_address(plain).is_loopback
    except ValueError:
        return False


def cluster_spec_from_config(
    config: ClusterConfig, *, hosts: Sequence[Host] | None, machine_memory_bytes: int
) -> tuple[ClusterSpec | None, list[Finding]]:
    """The cluster that ``config`` describes, or what is wrong with it.

    ``hosts`` is what a hostfile said; ``None`` makes ``config.hosts`` hosts of ``config.devices_per_host`` slots, named
    ``localhost``, or ``host-1``, ``host-2``, ... when there are several. ``machine_memory_bytes`` is this machine's RAM, for
    hosts whose RAM the configuration leaves open.
    """
    findings = list(_size_findings(config, hosts))
    if findings:
        return None, findings
    named = tuple(hosts) if hosts is not None else named_hosts(config.hosts, config.devices_per_host)
    host_memory = machine_memory_bytes if config.host_memory_gib is None else round(config.host_memory_gib * GIB)
    slots = max(host.slots for host in named)
    shared = host_memory // slots
    spec = ClusterSpec(
        name=config.name,
        hosts=named,
        accelerator=config.accelerator,
        device_name=config.device_name,
        device_memory_bytes=shared if config.device_memory_gib is None else round(config.device_memory_gib * GIB),
        device_context_bytes=round(config.device_context_gib * GIB),
        shares_host_memory=config.device_memory_gib is None,
        host_memory_bytes=host_memory,
        nvme_bytes=None if config.nvme_gib is None else round(config.nvme_gib * GIB),
        precisions=frozenset(config.precisions),
        peak_flops=peak_flops(config, slots),
        memory_bandwidth=_memory_bandwidth(config, slots),
        device_link_bandwidth=_bytes_per_second(config.device_link_gbps),
        host_link_bandwidth=_bytes_per_second(config.host_link_gbps),
        network_bandwidth=_bytes_per_second(config.network_gbps),
        speed=delivered_speed(config),
    )
    return spec, []


def named_hosts(count: int, slots: int) -> tuple[Host, ...]:
    """``count`` hosts of ``slots`` devices: ``localhost``, or ``host-1``, ``host-2``, ..."""
    if count == 1:
        return (Host(name="localhost", slots=slots),)
    return tuple(Host(name=f"host-{number}", slots=slots) for number in range(1, count + 1))


MAX_HOSTS = 10_000
MAX_DEVICES_PER_HOST = 1_024
_LARGEST_GIB = 1e9


def count_findings(config: ClusterConfig) -> list[Finding]:
    """What is wrong with the numbers of hosts and of their devices."""
    counts = (("hosts", config.hosts, MAX_HOSTS), ("devices_per_host", config.devices_per_host, MAX_DEVICES_PER_HOST))
    return [
        error(
            "cluster-size",
            f"cluster.{name}",
            f"{value} is not a number from 1 to {most}",
            f"set cluster.{name}={min(max(value, 1), most)}",
        )
        for name, value, most in counts
        if not 1 <= value <= most
    ]


def _size_findings(config: ClusterConfig, hosts: Sequence[Host] | None) -> Iterator[Finding]:
    if hosts is None:
        yield from count_findings(config)
    elif sum(host.slots for host in hosts) < 1 or any(host.slots < 0 for host in hosts):
        listed = ", ".join(f"{host.name} slots={host.slots}" for host in hosts) or "no host"
        yield error(
            "cluster-size", "cluster.hostfile", f"it gives no device to run on: {listed}", "give each host slots=1 or more"
        )
    yield from _memory_findings(config)


def _memory_findings(config: ClusterConfig) -> Iterator[Finding]:
    sizes = {
        "device_memory_gib": config.device_memory_gib,
        "host_memory_gib": config.host_memory_gib,
        "nvme_gib": config.nvme_gib,
    }
    for name, size in sizes.items():
        if size is not None and not 0 < size <= _LARGEST_GIB:
            yield error(
                "cluster-size",
                f"cluster.{name}",
                f"{size} GiB is not a size",
                f"set cluster.{name} to the real size, or to null",
            )
    if not 0 <= config.device_context_gib <= _LARGEST_GIB:
        yield error(
            "cluster-size",
            "cluster.device_context_gib",
            f"{config.device_context_gib} GiB is not a size",
            "set cluster.device_context_gib=0 or more",
        )
    if config.device_memory_gib is None and config.accelerator is not Accelerator.cpu:
        yield error(
            "cluster-size",
            "cluster.device_memory_gib",
            f"the memory of one {config.device_name} is not given, and only a CPU's is measured",
            "set cluster.device_memory_gib to what torch reports, in GiB",
        )


def threads_of_process(config: ClusterConfig, slots: int) -> int:
    """Cores that each of ``slots`` processes of a host computes on, where rates are given by the core; otherwise 1."""
    return 1 if config.cores_per_host is None else max(1, config.cores_per_host // max(1, slots))


def peak_flops(config: ClusterConfig, slots: int) -> Mapping[Precision, float]:
    """Dense peak of one device of a host with ``slots``, FLOP/s, in the formats where it is known."""
    scale = 1e12 * threads_of_process(config, slots)
    tflops = {
        Precision.bf16: config.bf16_tflops,
        Precision.fp16: config.fp16_tflops,
        Precision.fp32: config.fp32_tflops,
    }
    return MappingProxyType({precision: value * scale for precision, value in tflops.items() if value is not None})


def _memory_bandwidth(config: ClusterConfig, slots: int) -> float | None:
    whole = _bytes_per_second(config.memory_bandwidth_gbps)
    return None if whole is None else whole * threads_of_process(config, slots)


def _bytes_per_second(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * GB
