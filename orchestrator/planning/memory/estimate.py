"""The memory of a run: every class of equal ranks, every host's RAM and every host's disk.

Closed forms, evaluated once for each class of equal ranks. "Reserved" is what the framework's allocator holds, "device" what a
monitor shows (``levels.py``). On the CPU accelerator both are the resident set of the process, and a host's RAM is the sum over
its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import ClusterSpec, Host
from orchestrator.planning.kernels import Kernels
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.activations import Pass, in_flight_micro_batches
from orchestrator.planning.memory.device import (
    Phase,
    StageLoad,
    with_passes,
)
from orchestrator.planning.memory.disk import CheckpointDisk, checkpoint_disk
from orchestrator.planning.memory.hosts import EqualHosts, HostMemory, NvmeMemory, sum_hosts
from orchestrator.planning.memory.levels import (
    DeviceSurroundings,
    Levels,
    cached_bytes,
    extra_groups,
    held_bytes,
    levels,
    outside_bytes,
    remember,
    reserved_bytes,
)
from orchestrator.planning.memory.rank_kinds import RankKind, RankKinds
from orchestrator.planning.memory.shape import RankShape, TensorShapes, known_shapes
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

    The bytes are what the run needs; a monitor may show anything in the intervals (``levels.py``).
    """

    stage: int
    ranks: range
    levels: Levels
    capacity_bytes: int
    phase: Phase
    """That of the peak."""
    states: Mapping[Phase, Mapping[str, int]]
    """Components of every phase, in the order of a run, without those of ``passes``; together they add up to allocated."""
    passes: Mapping[Phase, Mapping[str, int]]
    surroundings: DeviceSurroundings
    measured_on: str | None
    """The host whose devices were measured to have less than the cluster says, and decide."""

    @property
    def components(self) -> Mapping[str, int]:
        """The components of the peak's phase."""
        return {**self.states[self.phase], **self.passes.get(self.phase, {})}

    @property
    def phases(self) -> Mapping[Phase, PhaseMemory]:
        """Every phase; the allocator may still hold what earlier ones needed."""
        memories: dict[Phase, PhaseMemory] = {}
        held: dict[str, int] = {}
        for phase, components in with_passes(self.states, self.passes).items():
            remember(held, components)
            level = levels(needed=sum(components.values()), cached=held_bytes(held), surroundings=self.surroundings)
            memories[phase] = PhaseMemory(components=components, levels=level)
        return memories

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
    hosts: tuple[Host, ...]
    equal_hosts: tuple[EqualHosts, ...]
    checkpoints: CheckpointDisk

    @property
    def host(self) -> tuple[HostMemory, ...]:
        """RAM of every host."""
        return tuple(equal.memory._replace(host=host.name) for equal in self.equal_hosts for host in self._hosts_of(equal))

    @property
    def nvme(self) -> tuple[NvmeMemory, ...]:
        """Disk of every host."""
        return tuple(equal.nvme._replace(host=host.name) for equal in self.equal_hosts for host in self._hosts_of(equal))

    def _hosts_of(self, equal: EqualHosts) -> Sequence[Host]:
        return self.hosts[equal.first : equal.first + equal.num_hosts]

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
        """The memory of the run. Work grows with kinds of stages and of hosts, not with ranks."""
        stages = RankKinds(self)
        device, shares, files = [], [], []
        for index in range(partition.num_coordinates):
            kind, load = stages.of_rank(index, partition.held_by(index))
            memory = self._device(index, kind, stages.passes(load))
            device.append(memory)
            shares.append(stages.host_share(kind, load, device_bytes=memory.device_bytes))
            files.append(kind.files)
        checkpoints = checkpoint_disk(
            self.settings,
            files,
            tensor_parallel_size=self.layout.tensor_parallel_size,
            data_parallel_size=self.layout.data_parallel_size,
            checkpoint=self.config.checkpoint,
            training=self.config.training,
        )
        return MemoryEstimate(
            device=tuple(device),
            hosts=self.cluster.hosts,
            equal_hosts=sum_hosts(self.cluster, self.layout, shares),
            checkpoints=checkpoints,
        )

    def device_bytes(self, coordinate: int, held: Sequence[Stage]) -> int:
        """Peak of a rank of pipeline coordinate ``coordinate`` if it holds ``held``."""
        stages = RankKinds(self)
        kind, load = stages.of_rank(coordinate, held)
        needed = max(kind.totals(stages.passes(load)).values())
        return int(
            reserved_bytes(needed, self.cluster.accelerator)
            + outside_bytes(self._surroundings(self.cluster.device_memory_bytes))
        )

    def loads(self, partition: Partition) -> tuple[tuple[StageLoad, Pass], ...]:
        """What a rank of each pipeline coordinate holds and does."""
        shapes = self.tensor_shapes
        held = [partition.held_by(index) for index in range(partition.num_coordinates)]
        return tuple(
            (self.load(index, stages, shapes.of_rank(stages, self.trainable_shares)), self.passed)
            for index, stages in enumerate(held)
        )

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

    @property
    def tensor_shapes(self) -> TensorShapes:
        """The parts of the model on one tensor-parallel rank."""
        return known_shapes(
            self.spec,
            tensor_parallel_size=self.layout.tensor_parallel_size,
            persistence_threshold=self.settings.stage3_param_persistence_threshold,
        )

    def load(self, coordinate: int, held: Sequence[Stage], shape: RankShape) -> StageLoad:
        """What a rank of pipeline coordinate ``coordinate`` has to do."""
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

    def _device(self, coordinate: int, kind: RankKind, passes: Mapping[Phase, Mapping[str, int]]) -> DeviceMemory:
        totals = kind.totals(passes)
        peak = max(totals, key=totals.__getitem__)
        ranks = self.layout.stage_ranks(coordinate)
        tightest = self.cluster.tightest_host(ranks)
        capacity = self.cluster.device_memory_bytes if tightest is None else self.cluster.device_capacity(tightest)
        surroundings = self._surroundings(capacity)
        return DeviceMemory(
            stage=coordinate,
            ranks=ranks,
            levels=levels(needed=totals[peak], cached=kind.cached + cached_bytes(passes), surroundings=surroundings),
            capacity_bytes=capacity,
            phase=peak,
            states=kind.states,
            passes=passes,
            surroundings=surroundings,
            measured_on=tightest.name if tightest is not None and capacity < self.cluster.device_memory_bytes else None,
        )

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
