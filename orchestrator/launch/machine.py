"""What is known of the launching host without a probe: its RAM, and where its scripts are."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import psutil

from orchestrator.launch.preflight import probe


def memory_limit_bytes() -> int:
    """RAM this process may use: the machine's, or the lowest limit of its control groups where that is lower."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in probe.memory_groups())])


def scripts_dir() -> Path:
    """Where the console scripts of this Python are (``deepspeed``, ``ninja``)."""
    return Path(sysconfig.get_path("scripts"))
