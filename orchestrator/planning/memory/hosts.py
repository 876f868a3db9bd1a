"""RAM and disk of every host: the sum over its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.broadcast import larger
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


class HostMemory(NamedTuple):
    """RAM of one host at start, in a step, and while a checkpoint is written or read. ``components`` are those of a step."""

    host: str
    start_bytes: int
    step_bytes: int
    save_bytes: int
    load_bytes: int
    """While a run resumes: a process that has its states reads its files whole before it copies them."""
    capacity_bytes: int
    components: Mapping[str, int]

    @property
    def peak_bytes(self) -> int:
        """The most that a run needs at any time; one that resumes needs ``load_bytes`` at its start."""
        return max(self.start_bytes, self.step_bytes, self.save_bytes)

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.host``."""
        return {
            "host": self.host,
            "start_bytes": self.start_bytes,
            "step_bytes": self.step_bytes,
            "save_bytes": self.save_bytes,
            "load_bytes": self.load_bytes,
            "capacity_bytes": self.capacity_bytes,
            "components": dict(self.components),
        }


class NvmeMemory(NamedTuple):
    """Disk of one host; ``capacity_bytes`` is ``None`` when unknown."""

    host: str
    bytes: int
    capacity_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``memory.nvme``."""
        return {"host": self.host, "bytes": self.bytes, "capacity_bytes": self.capacity_bytes}


class EqualHosts(NamedTuple):
    """Consecutive hosts with the same ranks and capacities; in the entries their name is missing."""

    first: int
    """Its place in the cluster."""
    num_hosts: int
    memory: HostMemory
    nvme: NvmeMemory


class HostShare(NamedTuple):
    """What one rank adds to its host, bytes."""

    start: int
    step: int
    save: int
    first_replica_save: int
    """``save`` of a rank that also writes the model's parameters: the first data-parallel rank."""
    load: int
    nvme: int
    components: Mapping[str, int]


_Mix: TypeAlias = tuple[tuple[int, int, int], ...]
"""For each stage on a host: its index, how many of its ranks are there, and how many of those are of the first replica."""


def host_share(
    settings: DeepSpeedSettings,
    cluster: ClusterSpec,
    load: StageLoad,
    *,
    device_bytes: int,
    file_bytes: int,
    activation_bytes: int = 0,
    initial_value_bytes: int = 0,
) -> HostShare:
    """The share of any rank of a stage whose process takes ``device_bytes`` of its device: on a CPU that is the process.

    ``file_bytes`` are those of its files in a checkpoint.
    ``activation_bytes`` are those that wait in host memory for the backward pass, ``initial_value_bytes`` what the largest
    parameter takes while its first values are made: the model is built before anything is offloaded.
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
    pinning = initialization_copy_bytes(settings, shape, data_parallel_size=dp)
    start = _start_process_bytes(settings, cluster, load) + larger(first.total + pinning, initial_value_bytes)
    if settings.accelerator is Accelerator.cpu:
        step = device_bytes
        return HostShare(
            start=start,
            step=step,
            save=step,
            first_replica_save=step,
            load=start + file_bytes,
            nvme=disk,
            components={"processes": step},
        )
    states = host_states(settings, shape, data_parallel_size=dp, accumulates=load.accumulates)
    save = PROCESS_BYTES + states.total
    own, whole = (
        save_copy_bytes(settings, shape, data_parallel_size=dp, writes_model=writes_model) for writes_model in (False, True)
    )
    return HostShare(
        start=start,
        step=save + activation_bytes,
        save=save + own,
        first_replica_save=save + whole,
        load=save + file_bytes,
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


def sum_hosts(cluster: ClusterSpec, layout: ParallelLayout, shares: Sequence[HostShare]) -> tuple[EqualHosts, ...]:
    """Sum the shares of the ranks of each host, given the share of each stage's ranks.

    Ranks go to hosts in order, and the ranks of a stage are consecutive. Work grows with kinds of hosts.
    """
    found: list[EqualHosts] = []
    known: dict[Any, tuple[HostMemory, NvmeMemory]] = {}
    index = first_rank = 0
    for host, count in cluster.host_runs:
        stop = index + count
        while index < stop:
            mix = _mix(first_rank, first_rank + host.slots, layout.ranks_per_stage, layout.tensor_parallel_size)
            equal = min(stop - index, _equal_hosts(mix, first_rank, host.slots, layout.ranks_per_stage))
            # Stages of one kind have one share.
            kind = (id(host), *((id(shares[stage]), ranks, writers) for stage, ranks, writers in mix))
            if kind not in known:
                known[kind] = _host(
                    [(shares[stage], ranks, writers) for stage, ranks, writers in mix],
                    capacity_bytes=cluster.host_capacity(host),
                    nvme_capacity_bytes=cluster.nvme_capacity(host),
                )
            found.append(EqualHosts(index, equal, *known[kind]))
            index += equal
            first_rank += equal * host.slots
    return tuple(found)


def _equal_hosts(mix: _Mix, first_rank: int, slots: int, ranks_per_stage: int) -> int:
    """Hosts from this one on with the same mix: those of one stage that come after its first replica."""
    if len(mix) != 1:
        return 1
    stage, _, writers = mix[0]
    if writers:
        return 1
    return ((stage + 1) * ranks_per_stage - first_rank) // slots


def _mix(first_rank: int, stop_rank: int, ranks_per_stage: int, tensor_parallel_size: int) -> _Mix:
    """Which stages the ranks of a host are in. Of a stage's ranks the first tensor-parallel group is the first replica."""
    if first_rank == stop_rank:
        return ()
    first, last = first_rank // ranks_per_stage, (stop_rank - 1) // ranks_per_stage
    if first == last:
        writers = first * ranks_per_stage + tensor_parallel_size - first_rank
        return ((first, stop_rank - first_rank, min(writers, stop_rank - first_rank) if writers > 0 else 0),)
    mix = []
    for stage in range(first, last + 1):
        start = stage * ranks_per_stage
        inside, stop = max(first_rank, start), min(stop_rank, start + ranks_per_stage)
        mix.append((stage, stop - inside, max(0, min(stop, start + tensor_parallel_size) - inside)))
    return tuple(mix)


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


def _host(
    present: Sequence[tuple[HostShare, int, int]], *, capacity_bytes: int, nvme_capacity_bytes: int | None
) -> tuple[HostMemory, NvmeMemory]:
    """RAM and disk of a host with so many ranks of each share, some of which also write the model."""
    components = {"launcher": LAUNCHER_BYTES}
    start = save = load = LAUNCHER_BYTES
    disk = 0
    for share, count, writers in present:
        start += share.start * count
        load += share.load * count
        save += share.save * (count - writers) + share.first_replica_save * writers
        disk += share.nvme * count
        for component, size in share.components.items():
            components[component] = components.get(component, 0) + size * count
    memory = HostMemory(
        host="",
        start_bytes=start,
        step_bytes=sum(components.values()),
        save_bytes=save,
        load_bytes=load,
        capacity_bytes=capacity_bytes,
        components={component: size for component, size in components.items() if size},
    )
    return memory, NvmeMemory(host="", bytes=disk, capacity_bytes=nvme_capacity_bytes)
