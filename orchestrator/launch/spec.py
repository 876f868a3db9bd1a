"""What is started, where and how: everything that the controller of an attempt needs, as it lies in the attempt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.config.enums import LauncherBackend
from orchestrator.config.schema import LauncherConfig
from orchestrator.launch.setup_lines import after_setup
from orchestrator.launch.transport import LOCAL_HOST

_ANY_PORT = 29500
"""Shown where the port is chosen at the start: DeepSpeed's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A start of DeepSpeed's launcher on the hosts of a run. Nothing in it is secret."""

    backend: LauncherBackend
    """Never ``auto``."""
    hosts: tuple[str, ...]
    """The hosts of the run, in the order of their node ranks."""
    launcher: tuple[str, ...]
    """DeepSpeed's launcher with the options that are the same on every host."""
    worker: tuple[str, ...]
    """What the launcher starts, one process a device."""
    master_port: int | None
    """None: one that is free on the first host when the run starts."""
    environment: Mapping[str, str]
    working_directory: str
    setup: tuple[str, ...] = ()
    ssh_arguments: tuple[str, ...] = ()
    connect_seconds: float = 10.0
    stop_seconds: float = 10.0
    hang_timeout: float = 0.0
    save_on_stop: bool = True
    swap_directory: str | None = field(default=None)
    """Of the run, on the NVMe disk of every host; removed afterwards if ``swap_owner`` is its owner."""
    swap_owner: str | None = None

    @property
    def over_agents(self) -> bool:
        """Whether every host has an agent; otherwise one on this machine starts everything."""
        return self.backend in (LauncherBackend.ssh, LauncherBackend.slurm)

    @property
    def agent_hosts(self) -> tuple[str, ...]:
        """Where agents run, by node rank."""
        return self.hosts if self.over_agents else (LOCAL_HOST,)

    @property
    def ssh_settings(self) -> LauncherConfig:
        """The options of ssh."""
        return LauncherConfig(ssh_arguments=list(self.ssh_arguments), connect_seconds=self.connect_seconds)

    def argv(self, node_rank: int, master_port: int) -> tuple[str, ...]:
        """The launcher's command line for one host."""
        rank = (f"--node_rank={node_rank}",) if self.over_agents else ()
        return (*self.launcher, *rank, f"--master_port={master_port}", *self.worker)

    def shell(self) -> str:
        """The same as lines for a shell, one a host, to be pasted there."""
        assignments = [f"{name}={value}" for name, value in self.environment.items()]
        lines = []
        for node_rank, host in enumerate(self.agent_hosts):
            argv = after_setup(self.setup_here, self.argv(node_rank, self.master_port or _ANY_PORT))
            line = f"cd {shlex.quote(self.working_directory)} && {shlex.join(['env', *assignments, *argv])}"
            lines.append(line if len(self.agent_hosts) == 1 else f": on {shlex.quote(host)}; {line}")
        return "\n".join(lines)

    @property
    def setup_here(self) -> tuple[str, ...]:
        """The setup lines that an agent runs; through pdsh the hosts' shells run them."""
        return () if self.backend is LauncherBackend.pdsh else self.setup

    def to_dict(self) -> dict[str, Any]:
        """The content of ``command.json``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> LaunchSpec:
        """What ``to_dict`` made, read back."""
        tuples = {name: tuple(entry[name]) for name in ("hosts", "launcher", "worker", "setup", "ssh_arguments")}
        return cls(**{**entry, **tuples, "backend": LauncherBackend(entry["backend"])})
