"""The memory of a run: every class of equal ranks, every host's RAM and every host's disk.

A first estimate from closed forms. "Reserved" is what the framework's allocator holds, "device" what a monitor shows. On the
CPU accelerator both are the resident set of the process, and a host's RAM is the sum over its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import Accelerator, RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.activations import Pass, in_flight_micro_batches
from orchestrator.planning.memory.device import Phase, StageLoad, phase_components
from orchestrator.planning.memory.host import host_states
from orchestrator.planning.memory.hosts import HostMemory, NvmeMemory, host_share, sum_hosts
from orchestrator.planning.memory.shape import rank_shape
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import Partition
from orchestrator.units import DTYPE_BYTES

ALLOCATOR_SLACK = 0.05
"""Share by which torch's GPU allocator holds more than the tensors it gave out, by rounding and fragmentation.

Public reports range from under 2 % with expandable segments to over 10 % without.
"""
CPU_ALLOCATOR_SLACK = 0.2
"""The same for the C library's allocator: blocks it keeps after they are freed. 5 to 43 % in runs of our own on two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Peak of the equal ranks of one pipeline stage. ``components`` are those of the peak's phase; they add up to allocated."""

    stage: int
    ranks: range
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    capacity_bytes: int
    components: Mapping[str, int]
    phase: Phase

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.device``."""
        return {
            "stage": self.stage,
            "ranks": list(self.ranks),
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "device_bytes": self.device_bytes,
            "capacity_bytes": self.capacity_bytes,
            "components": dict(self.components),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """All of it."""

    device: tuple[DeviceMemory, ...]
    host: tuple[HostMemory, ...]
    nvme: tuple[NvmeMemory, ...]

    def to_dict(self) -> dict[str, Any]:
        """The ``memory`` object of ``output=json``."""
        return {
            "device": [entry.to_dict() for entry in self.device],
            "host": [entry.to_dict() for entry in self.host],
            "nvme": [entry.to_dict() for entry in self.nvme],
        }


def estimate_memory(
    config: RunConfig,
    *,
    spec: ModelSpec,
    cluster: ClusterSpec,
    layout: ParallelLayout,
    settings: DeepSpeedSettings,
    partition: Partition,
) -> MemoryEstimate:
    """Estimate a run whose pieces are legal. Work grows with stages and hosts, not with ranks."""
    passed = Pass(
        micro_batch=layout.train_micro_batch_size_per_gpu,
        sequence_length=config.data.sequence_length,
        dtype_bytes=DTYPE_BYTES[settings.dtype],
        tensor_parallel_size=layout.tensor_parallel_size,
        recompute=config.activation_checkpointing.policy,
        accelerator=settings.accelerator,
    )
    loads = list(_stage_loads(config, spec, layout, settings, partition))
    device = [_device_memory(index, layout, cluster, _phases(spec, settings, load, passed)) for index, load in enumerate(loads)]
    shares = [
        host_share(settings, cluster, load, device_bytes=memory.device_bytes)
        for load, memory in zip(loads, device, strict=True)
    ]
    host, nvme = sum_hosts(cluster, layout, shares)
    return MemoryEstimate(device=tuple(device), host=host, nvme=nvme)


def _stage_loads(
    config: RunConfig, spec: ModelSpec, layout: ParallelLayout, settings: DeepSpeedSettings, partition: Partition
) -> Iterator[StageLoad]:
    for index, stage in enumerate(partition.stages):
        shape = rank_shape(
            spec,
            stage,
            tensor_parallel_size=layout.tensor_parallel_size,
            pipeline_parallel_size=layout.pipeline_parallel_size,
            persistence_threshold=settings.stage3_param_persistence_threshold,
        )
        in_flight = in_flight_micro_batches(
            index,
            pipeline_parallel_size=layout.pipeline_parallel_size,
            micro_batches=layout.gradient_accumulation_steps,
            schedule=config.parallelism.schedule,
        )
        yield StageLoad(
            stage=stage,
            shape=shape,
            in_flight=in_flight if layout.pipeline_parallel_size > 1 else 1,
            data_parallel_size=layout.data_parallel_size,
            pipeline_parallel_size=layout.pipeline_parallel_size,
            accumulates=layout.gradient_accumulation_steps > 1,
        )


def _phases(spec: ModelSpec, settings: DeepSpeedSettings, load: StageLoad, passed: Pass) -> Mapping[Phase, Mapping[str, Any]]:
    """Components of the device; on a CPU what is offloaded stays in the same process."""
    phases = phase_components(spec, settings, load, passed)
    if settings.accelerator is not Accelerator.cpu:
        return phases
    offloaded = host_states(settings, load.shape, data_parallel_size=load.data_parallel_size, accumulates=load.accumulates)
    return {phase: {**components, "offloaded_states": offloaded.total} for phase, components in phases.items()}


def _device_memory(
    index: int, layout: ParallelLayout, cluster: ClusterSpec, phases: Mapping[Phase, Mapping[str, Any]]
) -> DeviceMemory:
    peak = max(phases, key=lambda phase: sum(phases[phase].values()))
    components = {name: int(size) for name, size in phases[peak].items() if size}
    allocated = sum(components.values())
    slack = CPU_ALLOCATOR_SLACK if cluster.accelerator is Accelerator.cpu else ALLOCATOR_SLACK
    reserved = round(allocated * (1 + slack))
    return DeviceMemory(
        stage=index,
        ranks=layout.stage_ranks(index),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=reserved + cluster.device_context_bytes,
        capacity_bytes=cluster.device_memory_bytes,
        components=components,
        phase=peak,
    )
