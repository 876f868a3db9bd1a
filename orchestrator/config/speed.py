"""What the devices and links of a cluster really deliver: ``cluster.speed``, read by the estimate of time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class SpeedConfig:
    """Shares of the labelled rates that are reached, and fixed costs. null = what is known of the device, else of GPUs."""

    matmul_efficiency: float | None = None
    """Share of the peak that large matrix products reach."""
    memory_efficiency: float | None = None
    """Share of the memory bandwidth that element-wise operations reach."""
    launch_us: float | None = None
    """What the host needs to start one operation, microseconds: a small layer takes as long as its launches."""
    link_efficiency: float | None = None
    """Share of device_link_gbps that all-gather and reduce-scatter reach."""
    all_reduce_efficiency: float | None = None
    """The same of all-reduce, which a switch may help."""
    link_latency_us: float | None = None
    """Fixed cost of a collective in a host, microseconds, with the wait for its slowest rank."""
    network_efficiency: float | None = None
    """Share of network_gbps that collectives over several hosts reach."""
    zero3_network_efficiency: float | None = None
    """Share of network_gbps that ZeRO-3's gathers and scatters over several hosts reach."""
    network_latency_us: float | None = None
    """What each step from host to host adds to a collective, microseconds."""
    host_link_efficiency: float | None = None
    """Share of host_link_gbps that copies between host and device reach."""
    host_adam_gparams: float | None = None
    """Parameters of Adam that the processors of one host update a second, 10^9."""
    nvme_read_gbps: float | None = None
    """What the NVMe disks of one host read, GB/s."""
    nvme_write_gbps: float | None = None
    """What the NVMe disks of one host write, GB/s."""
    step_overhead_ms: float | None = None
    """What every optimizer step costs beside its work, milliseconds."""
