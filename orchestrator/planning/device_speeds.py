"""What devices and links were measured to deliver, by the name of the device: where ``cluster.speed`` is null.

Sources: best plain matrix products and link rates from the tables of the "Machine Learning Engineering" book (S. Bekman,
2026); all-reduce points of A100 and V100 from the traces of vTrain (Bang et al., 2024); launches and latencies of A100 fitted
to half of vTrain's steps on one host (12 and 24 layers). ``tests/benchmarks/time_accuracy.py`` says how far the whole is from
published steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from orchestrator.config.schema import ClusterConfig
from orchestrator.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredSpeed:
    """Shares of the labelled rates, and fixed costs in seconds; the fields are those of ``cluster.speed``.

    The defaults are those of a GPU that is not in the table.
    """

    matmul_efficiency: float = 0.8
    memory_efficiency: float = 0.8
    launch_seconds: float = 8e-6
    """Half a layer's operations are PyTorch's own, which need 5 us on a fast host; the rest runs more Python."""
    link_efficiency: float = 0.8
    """Fast links deliver 80 to 88 % of the label (A100 75, H100 80, GB200 83)."""
    all_reduce_efficiency: float = 0.8
    link_latency_seconds: float = 80e-6
    network_efficiency: float = 0.8
    zero3_network_efficiency: float = 0.4
    """ZeRO-3 on DGX-2 with four InfiniBand ports (DeepSpeed's ZeRO++ post): 18 to 24 of 50 GB/s."""
    network_latency_seconds: float = 30e-6
    """NCCL's own model has 14 us for a network hop and 3.4 for each link of a host's ring."""
    host_link_efficiency: float = 0.87
    """H200: 55 of 63 GB/s."""
    host_adam_parameters_per_second: float = 1.76e9
    """Four ranks of 0.44 G parameters a second (derived from DeepSpeed's ZenFlow post: Llama-2-7B, 4 A100)."""
    nvme_read_bandwidth: float = 10 * GB
    """Four Gen4 drives (DeepSpeed's DeepNVMe post); eight Gen5 drives read 48."""
    nvme_write_bandwidth: float = 5 * GB
    """Four Gen4 drives; eight Gen5 drives write 26."""
    step_overhead_seconds: float = 8e-3


_A100 = DeliveredSpeed(
    # The best product reaches 0.87, a container's 0.79; fitted with Narayanan's table 1.
    matmul_efficiency=0.83,
    launch_seconds=10.4e-6,
    # Measured 224 of 300 GB/s and 40 to 92 us; in training a collective also waits for its slowest rank.
    link_efficiency=0.72,
    all_reduce_efficiency=0.72,
    link_latency_seconds=110e-6,
    # One of eight ports: 16 to 24 GB/s in the ZeRO-3 steps of GPT 175B and 530B on 768 to 2240 GPUs (Narayanan 2021).
    zero3_network_efficiency=0.12,
)

MEASURED: Mapping[str, DeliveredSpeed] = MappingProxyType(
    {
        "v100": DeliveredSpeed(
            matmul_efficiency=0.68,
            launch_seconds=10.4e-6,
            link_efficiency=0.9,
            all_reduce_efficiency=0.9,
            link_latency_seconds=100e-6,
        ),
        "a100": _A100,
        "a800": _A100,  # the same chip with 8 of 12 links
        "h100": DeliveredSpeed(all_reduce_efficiency=1.0),
        "h200": DeliveredSpeed(all_reduce_efficiency=1.0),
        "gh200": DeliveredSpeed(matmul_efficiency=0.84),
        "b200": DeliveredSpeed(
            matmul_efficiency=0.78,
            link_efficiency=0.75,
            all_reduce_efficiency=0.85,
            network_efficiency=0.93,
            network_latency_seconds=100e-6,
        ),
        "b300": DeliveredSpeed(matmul_efficiency=0.79, link_efficiency=0.75, all_reduce_efficiency=0.85),
        "gb200": DeliveredSpeed(matmul_efficiency=0.73, link_efficiency=0.83, all_reduce_efficiency=0.83),
        "mi300x": DeliveredSpeed(matmul_efficiency=0.51, link_efficiency=0.7, all_reduce_efficiency=0.7),
        "mi325x": DeliveredSpeed(matmul_efficiency=0.6, link_efficiency=0.7, all_reduce_efficiency=0.7),
        "mi355x": DeliveredSpeed(matmul_efficiency=0.68),
    }
)
"""By the start of the device's name in small letters."""

_SCALES = {
    "us": ("seconds", 1e-6),
    "ms": ("seconds", 1e-3),
    "gbps": ("bandwidth", GB),
    "gparams": ("parameters_per_second", 1e9),
}


def delivered_speed(config: ClusterConfig) -> DeliveredSpeed:
    """``cluster.speed``, in seconds and bytes, with what is known of the device where it is null."""
    stated = {}
    for field in fields(config.speed):
        value = getattr(config.speed, field.name)
        name, _, unit = field.name.rpartition("_")
        ending, scale = _SCALES.get(unit, (unit, 1.0))
        if value is not None:
            stated[f"{name}_{ending}"] = value * scale
    return replace(measured_speed(config.device_name), **stated)


def speed_option(field: str, value: float) -> tuple[str, float]:
    """The option of ``cluster.speed`` behind a field of ``DeliveredSpeed``, and ``value`` in its unit."""
    for config_field in fields(ClusterConfig().speed):
        name, _, unit = config_field.name.rpartition("_")
        ending, scale = _SCALES.get(unit, (unit, 1.0))
        if f"{name}_{ending}" == field:
            return config_field.name, value / scale
    raise AssertionError(field)


def measured_speed(device_name: str) -> DeliveredSpeed:
    """What is known of a device, or of GPUs where it is not in the table."""
    plain = device_name.lower().replace("nvidia", "").replace("amd", "").strip(" -")
    return next((speed for name, speed in MEASURED.items() if plain.startswith(name)), DeliveredSpeed())
