"""A calibrated cluster as the values of a preset of the group ``cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.calibration.constants import CONSTANTS, with_factors
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.device_speeds import speed_option
from orchestrator.units import GB

_OF_ONE_RUN = ("hostfile", "include", "exclude", "measured_with")
_DIGITS = 4


def calibrated_preset(
    config: ClusterConfig, cluster: ClusterSpec, factors: Mapping[str, float], *, cores_per_host: int | None
) -> dict[str, Any]:
    """``config`` with the speeds of ``cluster`` times ``factors``; what no factor is for stays as it is.

    A CPU has no labels: its peaks and bandwidths are what was found, ``cores_per_host`` as in ``cluster.cores_per_host``.
    """
    calibrated, values = with_factors(cluster, factors), preset_values(config)
    speed: dict[str, float] = values.pop("speed")
    for constant in CONSTANTS:
        if constant.name in factors:
            options = (speed_option(field, getattr(calibrated.speed, field)) for field in constant.fields)
            speed |= {name: _rounded(value) for name, value in options}
    if cluster.accelerator is Accelerator.cpu:
        values |= _cpu_rates(calibrated, factors, cores_per_host)
        speed |= dict.fromkeys(_CPU_SHARES, 1.0)
    return {**values, "speed": speed}


def preset_values(config: ClusterConfig) -> dict[str, Any]:
    """What a preset has to say of ``config``: nothing that is null, and nothing of one run alone."""
    values = {name: _plain(value) for name, value in asdict(config).items() if name not in (*_OF_ONE_RUN, "speed")}
    values = {name: value for name, value in values.items() if value is not None}
    return {**values, "speed": {name: value for name, value in asdict(config.speed).items() if value is not None}}


_CPU_SHARES = ("matmul_efficiency", "memory_efficiency", "link_efficiency", "all_reduce_efficiency")


def _cpu_rates(cluster: ClusterSpec, factors: Mapping[str, float], cores_per_host: int | None) -> dict[str, Any]:
    """What a CPU delivers, in place of labels."""
    slots, speed = cluster.devices_per_host, cluster.speed
    threads = 1 if cores_per_host is None else max(1, cores_per_host // slots)
    rates: dict[str, Any] = {"devices_per_host": slots}
    if cores_per_host is not None:
        rates["cores_per_host"] = cores_per_host
    for precision, peak in cluster.peak_flops.items():
        rates[f"{precision.value}_tflops"] = _rounded(peak * speed.matmul_efficiency / threads / 1e12)
    assert cluster.memory_bandwidth is not None
    rates["memory_bandwidth_gbps"] = _rounded(cluster.memory_bandwidth * speed.memory_efficiency / threads / GB)
    if cluster.device_link_bandwidth is not None and "links" in factors:
        rates["device_link_gbps"] = _rounded(cluster.device_link_bandwidth * speed.all_reduce_efficiency / GB)
    return rates


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return [_plain(item) for item in value] if isinstance(value, list) else value
