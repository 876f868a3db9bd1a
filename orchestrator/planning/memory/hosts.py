"""RAM and disk of every host: the sum over its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.device import StageLoad
from orchestrator.planning.memory.host import (
    LAUNCHER_BYTES,
    PROCESS_BYTES,
    host_states,
    initialization_copy_bytes,
    save_copy_bytes,
)
from orchestrator.planning.memory.nvme import nvme_bytes
from orchestrator.planning.memory.states import device_states


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """RAM of one host at start, in a step and while a checkpoint is written. ``components`` are those of a step."""

    host: str
    start_bytes: int
    step_bytes: int
    save_bytes: int
    capacity_bytes: int
    components: Mapping[str, int]

    @property
    def peak_bytes(self) -> int:
        """The most that is needed at any time."""
        return max(self.start_bytes, self.step_bytes, self.save_bytes)

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.host``."""
        return {
            "host": self.host,
            "start_bytes": self.start_bytes,
            "step_bytes": self.step_bytes,
            "save_bytes": self.save_bytes,
            "capacity_bytes": self.capacity_bytes,
            "components": dict(self.components),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeMemory:
    """Disk of one host; ``capacity_bytes`` is ``None`` when unknown."""

    host: str
    bytes: int
    capacity_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.nvme``."""
        return {"host": self.host, "bytes": self.bytes, "capacity_bytes": self.capacity_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What one rank adds to its host, bytes."""

    start: int
    step: int
    save: int
    first_replica_save: int
    """``save`` of a rank that also writes the model's parameters: the first data-parallel rank."""
    nvme: int
    components: Mapping[str, int]


_Mix: TypeAlias = tuple[tuple[int, int, int], ...]
"""For each stage on a host: its index, how many of its ranks are there, and how many of those are of the first replica."""


def host_share(
    settings: DeepSpeedSettings, cluster: ClusterSpec, load: StageLoad, *, device_bytes: int, activation_bytes: int = 0
) -> HostShare:
    """The share of any rank of a stage whose process takes ``device_bytes`` of its device: on a CPU that is the process.

    ``activation_bytes`` are those that wait in host memory for the backward pass.
    """
    shape, dp = load.shape, load.data_parallel_size
    disk = nvme_bytes(
        settings,
        num_parameters=shape.parameters,
        num_trainable=shape.trainable_parameters,
        num_muon=shape.muon_parameters,
        data_parallel_size=dp,
    )
    first = host_states(settings, shape, data_parallel_size=dp, accumulates=load.accumulates, with_moments=False)
    start = _start_process_bytes(settings, cluster, load) + first.total
    if settings.accelerator is Accelerator.cpu:
        step = device_bytes
        return HostShare(start=start, step=step, save=step, first_replica_save=step, nvme=disk, components={"processes": step})
    states = host_states(settings, shape, data_parallel_size=dp, accumulates=load.accumulates)
    save = PROCESS_BYTES + states.total
    own, whole = (
        save_copy_bytes(settings, shape, data_parallel_size=dp, writes_model=writes_model) for writes_model in (False, True)
    )
    return HostShare(
        start=start + initialization_copy_bytes(settings, shape, data_parallel_size=dp),
        step=save + activation_bytes,
        save=save + own,
        first_replica_save=save + whole,
        nvme=disk,
        components={
            "processes": PROCESS_BYTES,
            "parameters": states.parameters,
            "gradients": states.gradients,
            "optimizer_states": states.optimizer_states,
            "swap_buffers": states.swap_buffers,
            "activations": activation_bytes,
        },
    )


def sum_hosts(
    cluster: ClusterSpec, layout: ParallelLayout, shares: Sequence[HostShare]
) -> tuple[tuple[HostMemory, ...], tuple[NvmeMemory, ...]]:
    """Sum the shares of the ranks of each host, given the share of each stage's ranks.

    Ranks go to hosts in order, and the ranks of a stage are consecutive. Hosts with the same mix of ranks are computed once.
    """
    memories: list[HostMemory] = []
    disks: list[NvmeMemory] = []
    known: dict[_Mix, tuple[HostMemory, NvmeMemory]] = {}
    first_rank = 0
    for host in cluster.hosts:
        ranks = range(first_rank, first_rank + host.slots)
        first_rank = ranks.stop
        mix = tuple(
            (stage, _overlap(ranks, layout.stage_ranks(stage)), _overlap(ranks, _first_replica(layout, stage)))
            for stage in range(ranks.start // layout.ranks_per_stage, -(-ranks.stop // layout.ranks_per_stage))
        )
        if mix not in known:
            known[mix] = _host(cluster, [(shares[stage], count, writers) for stage, count, writers in mix])
        memory, disk = known[mix]
        memories.append(replace(memory, host=host.name))
        disks.append(replace(disk, host=host.name))
    return tuple(memories), tuple(disks)


def _start_process_bytes(settings: DeepSpeedSettings, cluster: ClusterSpec, load: StageLoad) -> int:
    """A process while DeepSpeed builds its engine. On a CPU the parameters exist twice while they are flattened."""
    if settings.accelerator is not Accelerator.cpu:
        return PROCESS_BYTES
    shape = load.shape
    states = device_states(
        settings,
        num_parameters=shape.parameters,
        num_trainable=shape.trainable_parameters,
        num_muon=shape.muon_parameters,
        data_parallel_size=load.data_parallel_size,
    )
    return cluster.device_context_bytes + 2 * int(states.parameters) + int(states.optimizer_states)


def _host(cluster: ClusterSpec, present: Sequence[tuple[HostShare, int, int]]) -> tuple[HostMemory, NvmeMemory]:
    """RAM and disk of a host with so many ranks of each share, some of which also write the model's parameters."""
    components = {"launcher": LAUNCHER_BYTES}
    start = save = LAUNCHER_BYTES
    disk = 0
    for share, count, writers in present:
        start += share.start * count
        save += share.save * (count - writers) + share.first_replica_save * writers
        disk += share.nvme * count
        for name, size in share.components.items():
            components[name] = components.get(name, 0) + size * count
    memory = HostMemory(
        host="",
        start_bytes=start,
        step_bytes=sum(components.values()),
        save_bytes=save,
        capacity_bytes=cluster.host_memory_bytes,
        components={name: size for name, size in components.items() if size},
    )
    return memory, NvmeMemory(host="", bytes=disk, capacity_bytes=cluster.nvme_bytes)


def _first_replica(layout: ParallelLayout, stage: int) -> range:
    start = layout.stage_ranks(stage).start
    return range(start, start + layout.tensor_parallel_size)


def _overlap(first: range, second: range) -> int:
    return max(0, min(first.stop, second.stop) - max(first.start, second.start))
