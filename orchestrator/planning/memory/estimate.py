"""The memory of a run: every class of equal ranks, every host's RAM and every host's disk.

A first estimate from closed forms. "Reserved" is what the framework's allocator holds, "device" what a monitor shows. On the
CPU accelerator both are the resident set of the process, and a host's RAM is the sum over its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.activations import Pass, host_activation_bytes, in_flight_micro_batches
from orchestrator.planning.memory.device import Phase, StageLoad, phase_components
from orchestrator.planning.memory.host import host_states
from orchestrator.planning.memory.hosts import HostMemory, NvmeMemory, host_share, sum_hosts
from orchestrator.planning.memory.shape import rank_shape
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import Partition, Stage
from orchestrator.units import DTYPE_BYTES

ALLOCATOR_SLACK = 0.05
"""Share by which torch's GPU allocator holds more than the tensors it gave out, by rounding and fragmentation.

Public reports range from under 2 % with expandable segments to over 10 % without.
"""
CPU_ALLOCATOR_SLACK = 0.2
"""The same for the C library's allocator: blocks it keeps after they are freed. 5 to 43 % in runs of our own on two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Peak of the equal ranks of one pipeline coordinate, ``stage``.

    ``components`` are those of the peak's phase; they add up to allocated.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """Everything about a run but its partition; the pieces must be legal."""

    config: RunConfig
    spec: ModelSpec
    cluster: ClusterSpec
    layout: ParallelLayout
    settings: DeepSpeedSettings
    trainable_shares: tuple[float, ...] | None
    """Share of each layer that is trained; ``None`` = all of all."""

    def estimate(self, partition: Partition) -> MemoryEstimate:
        """The memory of the run. Work grows with stages and hosts, not with ranks."""
        loads = [self._load(index, partition.held_by(index)) for index in range(partition.num_coordinates)]
        device = [self._device(index, load) for index, load in enumerate(loads)]
        shares = [
            host_share(
                self.settings,
                self.cluster,
                load,
                device_bytes=memory.device_bytes,
                activation_bytes=self._host_activations(load),
            )
            for load, memory in zip(loads, device, strict=True)
        ]
        host, nvme = sum_hosts(self.cluster, self.layout, shares)
        return MemoryEstimate(device=tuple(device), host=host, nvme=nvme)

    def device_bytes(self, coordinate: int, held: Sequence[Stage]) -> int:
        """Peak of a rank of pipeline coordinate ``coordinate`` if it holds ``held``."""
        return self._device(coordinate, self._load(coordinate, held)).device_bytes

    def loads(self, partition: Partition) -> tuple[tuple[StageLoad, Pass], ...]:
        """What a rank of each pipeline coordinate holds and does."""
        return tuple((self._load(index, partition.held_by(index)), self._pass) for index in range(partition.num_coordinates))

    @property
    def _pass(self) -> Pass:
        checkpointing = self.config.activation_checkpointing
        return Pass(
            micro_batch=self.layout.train_micro_batch_size_per_gpu,
            sequence_length=self.config.data.sequence_length,
            dtype_bytes=DTYPE_BYTES[self.settings.dtype],
            tensor_parallel_size=self.layout.tensor_parallel_size,
            sequence_parallel=self.config.parallelism.sequence_parallel,
            recompute=checkpointing.policy,
            recompute_interval=checkpointing.interval,
            partition_activations=checkpointing.partition_activations,
            cpu_checkpointing=checkpointing.cpu_checkpointing,
            accelerator=self.settings.accelerator,
        )

    def _load(self, coordinate: int, held: Sequence[Stage]) -> StageLoad:
        layout = self.layout
        shape = rank_shape(
            self.spec,
            held,
            tensor_parallel_size=layout.tensor_parallel_size,
            persistence_threshold=self.settings.stage3_param_persistence_threshold,
            trainable_shares=self.trainable_shares,
        )
        in_flight = [
            in_flight_micro_batches(
                coordinate,
                pipeline_parallel_size=layout.pipeline_parallel_size,
                micro_batches=layout.gradient_accumulation_steps,
                schedule=self.config.parallelism.schedule,
                way_back=way_back,
            )
            for way_back in (False, True)[: len(held)]
        ]
        return StageLoad(
            held=tuple(held),
            shape=shape,
            in_flight=tuple(in_flight) if layout.pipeline_parallel_size > 1 else (1,),
            data_parallel_size=layout.data_parallel_size,
            pipeline_parallel_size=layout.pipeline_parallel_size,
            accumulates=layout.gradient_accumulation_steps > 1,
        )

    def _host_activations(self, load: StageLoad) -> int:
        return sum(
            int(host_activation_bytes(self.spec, stage, self._pass, in_flight=held))
            for stage, held in zip(load.held, load.in_flight, strict=True)
        )

    def _device(self, coordinate: int, load: StageLoad) -> DeviceMemory:
        phases = self._phases(load)
        peak = max(phases, key=lambda phase: sum(phases[phase].values()))
        components = {name: int(size) for name, size in phases[peak].items() if size}
        allocated = sum(components.values())
        slack = CPU_ALLOCATOR_SLACK if self.cluster.accelerator is Accelerator.cpu else ALLOCATOR_SLACK
        reserved = round(allocated * (1 + slack))
        return DeviceMemory(
            stage=coordinate,
            ranks=self.layout.stage_ranks(coordinate),
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=reserved + self.cluster.device_context_bytes,
            capacity_bytes=self.cluster.device_memory_bytes,
            components=components,
            phase=peak,
        )

    def _phases(self, load: StageLoad) -> Mapping[Phase, Mapping[str, Any]]:
        """Components of the device; on a CPU what is offloaded stays in the same process."""
        phases = phase_components(self.spec, self.settings, load, self._pass)
        if self.settings.accelerator is not Accelerator.cpu:
            return phases
        states = host_states(
            self.settings, load.shape, data_parallel_size=load.data_parallel_size, accumulates=load.accumulates
        )
        activations = self._host_activations(load)
        kept = {Phase.loss: activations, Phase.backward: activations}
        return {
            phase: {**components, "offloaded_states": states.total, "offloaded_activations": kept.get(phase, 0)}
            for phase, components in phases.items()
        }
