"""The memory of a run: every class of equal ranks, every host's RAM and every host's disk.

Closed forms, evaluated once for each class of equal ranks. "Reserved" is what the framework's allocator holds, "device" what a
monitor shows (``levels.py``). On the CPU accelerator both are the resident set of the process, and a host's RAM is the sum over
its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.kernels import Kernels
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.activations import Pass, host_activation_bytes, in_flight_micro_batches
from orchestrator.planning.memory.device import Phase, PhaseComponents, StageLoad, phase_components, with_in_flight
from orchestrator.planning.memory.disk import CheckpointDisk, checkpoint_disk
from orchestrator.planning.memory.host import host_states
from orchestrator.planning.memory.hosts import HostMemory, NvmeMemory, host_share, sum_hosts
from orchestrator.planning.memory.levels import (
    DeviceSurroundings,
    Levels,
    cached_bytes,
    extra_groups,
    held_bytes,
    levels,
    needed_bytes,
    outside_bytes,
    remember,
    reserved_bytes,
)
from orchestrator.planning.memory.shape import RankShape, largest_parameter, rank_shape
from orchestrator.planning.memory.states import FP32_BYTES
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import Partition, Stage
from orchestrator.units import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The ranks of one pipeline coordinate in one phase; ``components`` add up to allocated."""

    components: Mapping[str, int]
    levels: Levels

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.device[].phases``."""
        return {**self.levels.to_dict(), "components": dict(self.components)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Peak of the equal ranks of one pipeline coordinate, ``stage``.

    The bytes are what the run needs; a monitor may show anything in the intervals (``levels.py``). ``components`` are those of
    the peak's phase; they add up to allocated.
    """

    stage: int
    ranks: range
    levels: Levels
    capacity_bytes: int
    components: Mapping[str, int]
    phase: Phase
    phases: Mapping[Phase, PhaseMemory]
    """Every phase, in the order of a run."""
    measured_on: str | None
    """The host whose devices were measured to have less than the cluster says, and decide."""

    @property
    def allocated_bytes(self) -> int:
        """Tensors."""
        return self.levels.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """What the allocator has taken for them."""
        return self.levels.reserved_bytes

    @property
    def device_bytes(self) -> int:
        """What a monitor shows."""
        return self.levels.device_bytes

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.device``."""
        return {
            "stage": self.stage,
            "ranks": list(self.ranks),
            **self.levels.to_dict(),
            "capacity_bytes": self.capacity_bytes,
            "measured_on": self.measured_on,
            "components": dict(self.components),
            "phase": self.phase.value,
            "phases": {phase.value: memory.to_dict() for phase, memory in self.phases.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """All of it."""

    device: tuple[DeviceMemory, ...]
    host: tuple[HostMemory, ...]
    nvme: tuple[NvmeMemory, ...]
    checkpoints: CheckpointDisk

    def to_dict(self) -> dict[str, Any]:
        """The ``memory`` object of ``output=json``."""
        return {
            "device": [entry.to_dict() for entry in self.device],
            "host": [entry.to_dict() for entry in self.host],
            "nvme": [entry.to_dict() for entry in self.nvme],
            "checkpoints": self.checkpoints.to_dict(),
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
        """The memory of the run. Work grows with kinds of stages and with hosts, not with ranks."""
        passed = self.passed
        known: dict[Any, tuple[RankShape, PhaseComponents]] = {}
        loads, device, shares = [], [], []
        for index in range(partition.num_coordinates):
            load, phases = self._known_stage(index, partition.held_by(index), passed, known)
            memory = self._device(index, load, phases, passed)
            loads.append(load)
            device.append(memory)
            waiting = self._host_activations(load, passed)
            shares.append(
                host_share(
                    self.settings,
                    self.cluster,
                    load,
                    device_bytes=memory.device_bytes,
                    activation_bytes=waiting,
                    initial_value_bytes=self._initial_value_bytes(load),
                )
            )
        host, nvme = sum_hosts(self.cluster, self.layout, shares)
        checkpoints = checkpoint_disk(
            self.settings,
            loads,
            tensor_parallel_size=self.layout.tensor_parallel_size,
            checkpoint=self.config.checkpoint,
            training=self.config.training,
        )
        return MemoryEstimate(device=tuple(device), host=host, nvme=nvme, checkpoints=checkpoints)

    def device_bytes(self, coordinate: int, held: Sequence[Stage]) -> int:
        """Peak of a rank of pipeline coordinate ``coordinate`` if it holds ``held``."""
        load, phases = self._known_stage(coordinate, held, self.passed, {})
        needed = needed_bytes(self._counted(load, phases, self.passed))
        return int(
            reserved_bytes(needed, self.cluster.accelerator)
            + outside_bytes(self._surroundings(self.cluster.device_memory_bytes))
        )

    def _known_stage(
        self,
        coordinate: int,
        held: Sequence[Stage],
        passed: Pass,
        known: dict[Any, tuple[RankShape, PhaseComponents]],
    ) -> tuple[StageLoad, PhaseComponents]:
        """The load of a stage and its components; stages of one kind differ in their micro-batches in flight alone."""
        kind = tuple(stage.kind if self.trainable_shares is None else stage for stage in held)
        if kind not in known:
            load = self._load(coordinate, held, self._shape(held))
            known[kind] = load.shape, phase_components(self.spec, self.settings, load, passed)
            return load, known[kind][1]
        shape, phases = known[kind]
        load = self._load(coordinate, held, shape)
        return load, with_in_flight(self.spec, phases, load, passed)

    def loads(self, partition: Partition) -> tuple[tuple[StageLoad, Pass], ...]:
        """What a rank of each pipeline coordinate holds and does."""
        held = [partition.held_by(index) for index in range(partition.num_coordinates)]
        return tuple((self._load(index, stages, self._shape(stages)), self.passed) for index, stages in enumerate(held))

    @property
    def passed(self) -> Pass:
        """One forward and backward pass of any rank."""
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
            kernels=Kernels(masks_documents=self.config.data.reset_at_documents),
        )

    def _shape(self, held: Sequence[Stage]) -> RankShape:
        return rank_shape(
            self.spec,
            held,
            tensor_parallel_size=self.layout.tensor_parallel_size,
            persistence_threshold=self.settings.stage3_param_persistence_threshold,
            trainable_shares=self.trainable_shares,
        )

    def _load(self, coordinate: int, held: Sequence[Stage], shape: RankShape) -> StageLoad:
        layout = self.layout
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

    def _initial_value_bytes(self, load: StageLoad) -> int:
        """Workers draw each parameter whole and in fp32, one at a time, and keep their part (``models/initialization.py``)."""
        with_vocabulary = any(stage.has_embedding or stage.has_head for stage in load.held)
        return FP32_BYTES * int(largest_parameter(self.spec, tensor_parallel_size=1, with_vocabulary=with_vocabulary))

    def _host_activations(self, load: StageLoad, passed: Pass) -> int:
        if not passed.cpu_checkpointing:
            return 0
        return sum(
            int(host_activation_bytes(self.spec, stage, passed, in_flight=held))
            for stage, held in zip(load.held, load.in_flight, strict=True)
        )

    def _device(self, coordinate: int, load: StageLoad, phases: PhaseComponents, passed: Pass) -> DeviceMemory:
        counted = self._counted(load, phases, passed)
        peak = max(counted, key=lambda phase: sum(counted[phase].values()))
        ranks = self.layout.stage_ranks(coordinate)
        tightest = self.cluster.tightest_host(ranks)
        capacity = self.cluster.device_memory_bytes if tightest is None else self.cluster.device_capacity(tightest)
        surroundings = self._surroundings(capacity)
        return DeviceMemory(
            stage=coordinate,
            ranks=ranks,
            levels=levels(needed=needed_bytes(counted), cached=cached_bytes(counted), surroundings=surroundings),
            capacity_bytes=capacity,
            measured_on=tightest.name if tightest is not None and capacity < self.cluster.device_memory_bytes else None,
            components=counted[peak],
            phase=peak,
            phases=_phase_memories(counted, surroundings),
        )

    def _counted(self, load: StageLoad, phases: PhaseComponents, passed: Pass) -> dict[Phase, dict[str, int]]:
        """Whole bytes of what is there at all."""
        if self.settings.accelerator is Accelerator.cpu:
            phases = self._with_offloaded(phases, load, passed)
        return {phase: {name: int(size) for name, size in parts.items() if size} for phase, parts in phases.items()}

    def _surroundings(self, capacity_bytes: int) -> DeviceSurroundings:
        layout = self.layout
        return DeviceSurroundings(
            accelerator=self.cluster.accelerator,
            context_bytes=self.cluster.device_context_bytes,
            extra_groups=extra_groups(
                tensor_parallel_size=layout.tensor_parallel_size,
                pipeline_parallel_size=layout.pipeline_parallel_size,
                data_parallel_size=layout.data_parallel_size,
            ),
            capacity_bytes=capacity_bytes,
        )

    def _with_offloaded(self, phases: PhaseComponents, load: StageLoad, passed: Pass) -> PhaseComponents:
        """On a CPU what is offloaded stays in the same process."""
        states = host_states(
            self.settings, load.shape, data_parallel_size=load.data_parallel_size, accumulates=load.accumulates
        )
        activations = self._host_activations(load, passed)
        kept = {Phase.loss: activations, Phase.backward: activations}
        return {
            phase: {**components, "offloaded_states": states.total, "offloaded_activations": kept.get(phase, 0)}
            for phase, components in phases.items()
        }


def _phase_memories(
    counted: Mapping[Phase, Mapping[str, int]], surroundings: DeviceSurroundings
) -> Mapping[Phase, PhaseMemory]:
    """Levels of each phase; the allocator may still hold what earlier phases needed."""
    memories: dict[Phase, PhaseMemory] = {}
    held: dict[str, int] = {}
    for phase, components in counted.items():
        remember(held, components)
        level = levels(needed=sum(components.values()), cached=held_bytes(held), surroundings=surroundings)
        memories[phase] = PhaseMemory(components=components, levels=level)
    return memories
