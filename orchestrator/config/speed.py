"""What the devices and links of a cluster really deliver: ``cluster.speed``, read by the estimate of time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class SpeedConfig:
    """Shares of the labelled rates that are reached, and fixed costs. The defaults are those of GPUs with fast links."""

    matmul_efficiency: float = 0.8
    """Share of the peak that large matrix products reach."""
    memory_efficiency: float = 0.8
    """Share of the memory bandwidth that element-wise operations reach."""
    launch_us: float = 10.0
    """What the host needs to start one operation of a layer, microseconds: small layers take as long as their launches."""
    link_efficiency: float = 0.75
    """Share of device_link_gbps that all-gather and reduce-scatter reach."""
    all_reduce_efficiency: float | None = None
    """The same of all-reduce, which a switch may help; null = link_efficiency."""
    link_latency_us: float = 30.0
    """Fixed cost of a collective in a host, microseconds."""
    network_efficiency: float = 0.8
    """Share of network_gbps that collectives over several hosts reach."""
    zero3_network_efficiency: float = 0.4
    """Share of network_gbps that ZeRO-3's gathers and scatters over several hosts reach."""
    network_latency_us: float = 30.0
    """What a step from host to host adds to a collective, microseconds."""
    host_link_efficiency: float = 0.87
    """Share of host_link_gbps that copies between host and device reach."""
    host_adam_gparams: float | None = None
    """Parameters of Adam that the processors of one host update a second, 10^9; null = unknown."""
    nvme_read_gbps: float | None = None
    """What the NVMe disks of one host read, GB/s; null = unknown."""
    nvme_write_gbps: float | None = None
    """What the NVMe disks of one host write, GB/s; null = unknown."""
    step_overhead_ms: float = 5.0
    """What every optimizer step costs beside its work, milliseconds."""
