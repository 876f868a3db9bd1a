"""A run that ran out of memory: predicted against measured on the rank that did, and the changes that would have fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from orchestrator.config.load import run_config_from_dict
from orchestrator.config.schema import RunConfig
from orchestrator.launch.command import HOSTFILE
from orchestrator.launch.ending.causes import HOST_OUT_OF_MEMORY
from orchestrator.launch.ending.diagnosis import Diagnosis
from orchestrator.launch.hostfile import read_hostfile
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.fixes import Fix, find_fixes
from orchestrator.planning.plan import make_plan
from orchestrator.planning.shortage import Place, Shortage, shortage_of
from orchestrator.report.memory import shortage_report
from orchestrator.run_dir import Attempt, read_json
from orchestrator.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What is known of a rank that ran out of memory."""

    rank: int
    host: str
    shortage: Shortage
    fixes: tuple[Fix, ...]

    def to_dict(self) -> dict[str, Any]:
        """The object of ``output=json``."""
        fixes = [fix.to_dict() for fix in self.fixes]
        return {"rank": self.rank, "host": self.host, **self.shortage.to_dict(), "fixes": fixes}

    def text(self) -> list[RenderableType]:
        """The same for people."""
        return shortage_report(self.shortage, self.fixes, rank=self.rank, host=self.host)


def report(attempt: Attempt, rank: int, *, killed: bool = False) -> OutOfMemory | None:
    """What ``rank`` of ``attempt`` needed and had; None if it did not run out of memory, or nothing was planned for it.

    It did if its failure record says so, or if it was ``killed`` without leaving one, as a host's out-of-memory killer does.
    """
    memory = _measured(attempt, rank)
    if (memory is None and not killed) or not (attempt.path / "plan.json").exists():
        return None
    plan, config = read_json(attempt.path / "plan.json"), run_config_from_dict(read_json(attempt.path / "config.json"))
    hosts = _hosts(attempt)
    host_index = _host_index(hosts, rank)
    if plan["memory"] is None or host_index is None:
        return None
    shortage = shortage_of(
        plan,
        rank=rank,
        host_index=host_index,
        accelerator=config.cluster.accelerator,
        place=Place.host if memory is None else Place(memory["place"]),
        memory=memory,
    )
    fixes = _fixes(config, hosts, shortage) if shortage.is_explained else ()
    return OutOfMemory(rank=rank, host=hosts[host_index].name, shortage=shortage, fixes=fixes)


def report_of_failure(attempt: Attempt, diagnosis: Diagnosis) -> OutOfMemory | None:
    """The report of the rank with which the failure of ``attempt`` began, by what the ranks left or else by its log."""
    short = [failure for failure in attempt.failures if failure.get("memory")]
    if short:
        return report(attempt, short[0]["rank"])
    first = diagnosis.first
    if first is None or first.cause.name != HOST_OUT_OF_MEMORY:
        return None
    return report(attempt, first.line.rank or 0, killed=True)


def _measured(attempt: Attempt, rank: int) -> Mapping[str, Any] | None:
    path = attempt.path / f"failure_rank_{rank}.json"
    return read_json(path).get("memory") if path.exists() else None


def _hosts(attempt: Attempt) -> tuple[Host, ...]:
    """As the attempt was started: the user's own hostfile may have changed."""
    hosts, _ = read_hostfile(attempt.path / HOSTFILE)
    return hosts


def _host_index(hosts: Sequence[Host], rank: int) -> int | None:
    """Ranks go to hosts in order."""
    first = 0
    for index, host in enumerate(hosts):
        first += host.slots
        if rank < first:
            return index
    return None


def _fixes(config: RunConfig, hosts: Sequence[Host], shortage: Shortage) -> tuple[Fix, ...]:
    """Changes with which the run fits into what there really was."""
    named = hosts if config.cluster.hostfile is not None else None
    real = deepcopy(config)
    if shortage.place is Place.device:
        real.cluster.device_memory_gib = shortage.usable_bytes / GIB
    else:
        real.cluster.host_memory_gib = shortage.usable_bytes / GIB
    plan = make_plan(real, hosts=named, machine_memory_bytes=shortage.usable_bytes)
    return find_fixes(real, plan, hosts=named, machine_memory_bytes=shortage.usable_bytes)
