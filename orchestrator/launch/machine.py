"""What is known of the launching host without a probe: its RAM, its names, a port, where its scripts are."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import psutil

from orchestrator.launch import probe
from orchestrator.launch.hostfile import local_names


def memory_limit_bytes() -> int:
    """RAM this process may use: the machine's, or the lowest limit of its control groups where that is lower."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in probe.memory_groups())])


def is_this_machine(name: str) -> bool:
    """Whether a host of the run is the launching host, as far as its own names, addresses and ``/etc/hosts`` say."""
    return local_names().is_own(name)


def free_port() -> int:
    """A TCP port of this host that nobody listens on at the moment of asking."""
    return probe.free_port()


def scripts_dir() -> Path:
    """Where the console scripts of this Python are (``deepspeed``, ``ninja``)."""
    return Path(sysconfig.get_path("scripts"))
