"""The rates at which one rank computes, copies and communicates: labels of the cluster times what is really delivered."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import Precision
from orchestrator.planning.cluster_spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """FLOP and bytes a second, and the seconds that things cost whatever their size."""

    peak_flops: float
    """Dense peak of a device in the format of the model: what model FLOPs utilization is measured against."""
    matmul_flops: float
    """What the largest matrix products reach."""
    plain_flops: float
    """What products reach whose sizes the matrix units cannot take."""
    memory_bandwidth: float
    launch_seconds: float
    link_bandwidth: float
    """Of one device to the others of its host, in all-gather and reduce-scatter."""
    all_reduce_bandwidth: float
    """The same in all-reduce."""
    link_latency: float
    network_bandwidth: float
    """Of one host to the others, all its devices together."""
    zero3_network_bandwidth: float
    """The same in the gathers and scatters of ZeRO-3."""
    network_latency: float
    host_link_bandwidth: float
    """Between a device and its host's RAM."""
    host_adam_rate: float
    """Parameters a second of one host."""
    nvme_read_bandwidth: float
    """Of one host, as the next."""
    nvme_write_bandwidth: float
    step_overhead: float
    slots: int
    """Devices of a host."""


def missing_facts(cluster: ClusterSpec, dtype: Precision) -> str | None:
    """What the estimate of time lacks, as the options that would tell; None if it has all."""
    needed = {
        f"{dtype.value}_tflops": cluster.peak_flops.get(dtype),
        "memory_bandwidth_gbps": cluster.memory_bandwidth,
        "device_link_gbps": cluster.device_link_bandwidth if cluster.devices_per_host > 1 else 1,
        "network_gbps": cluster.network_bandwidth if len(cluster.hosts) > 1 else 1,
    }
    unknown = [f"cluster.{name}" for name, value in needed.items() if value is None]
    if not unknown:
        return None
    listed = ", ".join(unknown)
    return f"not known of {cluster.device_name}: {listed}; orchestrator calibrate finds them (RUN..., or measure=true)"


def speeds_of(cluster: ClusterSpec, dtype: Precision) -> Speeds:
    """The speeds of a cluster of which ``missing_facts`` finds none."""
    assert cluster.memory_bandwidth is not None
    speed = cluster.speed
    peak = cluster.peak_flops[dtype]
    link = cluster.device_link_bandwidth or cluster.memory_bandwidth
    network = cluster.network_bandwidth or link
    return Speeds(
        peak_flops=peak,
        matmul_flops=peak * speed.matmul_efficiency,
        plain_flops=min(peak, cluster.peak_flops.get(Precision.fp32, peak)) * speed.matmul_efficiency,
        memory_bandwidth=cluster.memory_bandwidth * speed.memory_efficiency,
        launch_seconds=speed.launch_seconds,
        link_bandwidth=link * speed.link_efficiency,
        all_reduce_bandwidth=link * speed.all_reduce_efficiency,
        link_latency=speed.link_latency_seconds,
        network_bandwidth=network * speed.network_efficiency,
        zero3_network_bandwidth=network * speed.zero3_network_efficiency,
        network_latency=speed.network_latency_seconds,
        host_link_bandwidth=(cluster.host_link_bandwidth or link) * speed.host_link_efficiency,
        host_adam_rate=speed.host_adam_parameters_per_second,
        nvme_read_bandwidth=speed.nvme_read_bandwidth,
        nvme_write_bandwidth=speed.nvme_write_bandwidth,
        step_overhead=speed.step_overhead_seconds,
        slots=cluster.devices_per_host,
    )
