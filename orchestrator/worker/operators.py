"""DeepSpeed's compiled operators: which are still to be built here, and what one of them leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

from deepspeed.git_version_info import installed_ops

from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.operators import is_built, needed_operators

SHARED_MEMORY = Path("/dev/shm")


def operators_to_build(config: RunConfig) -> list[str]:
    """Operators that DeepSpeed will compile when this run starts: needed, not installed, and not built before."""
    return [name for name in needed_operators(config) if not installed_ops.get(name, False) and not is_built(name)]


def unlink_shared_buffer() -> None:
    """Take the name off this rank's buffer of DeepSpeed's CPU all-reduce; ranks that have mapped it keep it.

    DeepSpeed never does, and each rank of each run would leave 66 MiB of memory in use until the machine restarts.
    To be called when every rank has joined the process group, which is when all have mapped all buffers.
    """
    place = "_".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    (SHARED_MEMORY / f"deepspeed_allreduce_buffer_{os.getuid()}_{place}").unlink(missing_ok=True)
