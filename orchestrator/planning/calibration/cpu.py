"""A CPU host has no label that says what it computes and copies: what stands in for one until runs or a measurement do."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.config.enums import Accelerator, Precision
from orchestrator.planning.calibration.fit import Trust
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.cost.speeds import missing_facts
from orchestrator.planning.device_speeds import DeliveredSpeed
from orchestrator.units import GB

CORE_FLOPS = 50e9
"""A core with 8 fp32 lanes, two fused multiply-adds a cycle and 3 GHz does 96; a product in training about half."""
CORE_BANDWIDTH = 5 * GB
LINK_BANDWIDTH = 1 * GB
"""Between two processes of a host, through gloo."""
GUESSED = Trust(together=1.5, alone=0.7)
"""How far off such a guess may be: a factor of 4.5 is one standard deviation, of 2 between one constant and the others."""
MEASURED = Trust(together=0.4, alone=0.4)
"""The same of a CPU that was measured or calibrated: its processes also share caches and memory."""
_SPEED = DeliveredSpeed(
    matmul_efficiency=1.0,
    memory_efficiency=1.0,
    launch_seconds=10e-6,
    link_efficiency=1.0,
    all_reduce_efficiency=1.0,
    link_latency_seconds=200e-6,
    host_adam_parameters_per_second=0.3e9,
    step_overhead_seconds=10e-3,
)


def with_guessed_speeds(cluster: ClusterSpec, dtype: Precision, *, threads: int) -> ClusterSpec:
    """A CPU cluster of which facts are missing, with guesses in their place; any other as it is."""
    if cluster.accelerator is not Accelerator.cpu or missing_facts(cluster, dtype) is None:
        return cluster
    return replace(
        cluster,
        peak_flops={**cluster.peak_flops, dtype: threads * CORE_FLOPS},
        memory_bandwidth=threads * CORE_BANDWIDTH,
        device_link_bandwidth=LINK_BANDWIDTH,
        speed=_SPEED,
    )
