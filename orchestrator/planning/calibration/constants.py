"""The constants of hardware and software that finished runs decide: eight factors on what a cluster is known to deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.planning.cluster_spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A quantity of ``cluster.speed`` that a fit may scale."""

    name: str
    meaning: str
    fields: tuple[str, ...]
    """Those of ``DeliveredSpeed`` that are scaled together; the first is the one that is shown."""
    spread: float
    """How far a device is expected to be from its preset: standard deviation of the logarithm."""
    is_share: bool = False
    """A share of a label, which cannot exceed it."""


CONSTANTS: tuple[Constant, ...] = (
    Constant(
        name="matrix_products",
        meaning="share of the peak that matrix products reach",
        fields=("matmul_efficiency",),
        spread=0.2,
        is_share=True,
    ),
    Constant(
        name="memory",
        meaning="share of the memory bandwidth that element-wise operations reach",
        fields=("memory_efficiency",),
        spread=0.3,
        is_share=True,
    ),
    Constant(name="launches", meaning="seconds to launch an operation", fields=("launch_seconds",), spread=0.7),
    Constant(
        name="links",
        meaning="share of the link bandwidth that collectives in a host reach",
        fields=("all_reduce_efficiency", "link_efficiency"),
        spread=0.4,
    ),
    Constant(
        name="link_latency", meaning="seconds of a collective, however small", fields=("link_latency_seconds",), spread=1.0
    ),
    Constant(
        name="network",
        meaning="share of the network that collectives over hosts reach",
        fields=("network_efficiency", "zero3_network_efficiency"),
        spread=0.4,
    ),
    Constant(
        name="host_adam",
        meaning="parameters a second that a host's processors update",
        fields=("host_adam_parameters_per_second",),
        spread=0.5,
    ),
    Constant(
        name="step_overhead", meaning="seconds of every step beside its work", fields=("step_overhead_seconds",), spread=1.0
    ),
)


def with_factors(cluster: ClusterSpec, factors: Mapping[str, float]) -> ClusterSpec:
    """``cluster`` with its constants, by their names, multiplied."""
    scaled = {
        field: getattr(cluster.speed, field) * factors[constant.name]
        for constant in CONSTANTS
        if constant.name in factors
        for field in constant.fields
    }
    return replace(cluster, speed=replace(cluster.speed, **scaled))


def constant_value(cluster: ClusterSpec, constant: Constant) -> float:
    """What ``cluster`` has of it: a share, seconds, or parameters a second."""
    return float(getattr(cluster.speed, constant.fields[0]))
