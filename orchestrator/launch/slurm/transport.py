"""Starting a process on a host of the allocation that this process runs in."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from orchestrator.launch.transport import piped


def srun_argv(host: str, command: Sequence[str]) -> list[str]:
    """The job step that runs ``command`` once on ``host``, word by word as given.

    It overlaps with the script of the job and takes all that the job has of the host: one task alone would be bound to a core.
    """
    options = {
        "nodes": "1",
        "ntasks": "1",
        "nodelist": host,
        "cpu-bind": "none",
        "mem-bind": "none",
        "mpi": "none",
        "export": "ALL",
        "input": "all",
        "output": "all",
        "error": "all",
        "job-name": "orchestrator",
    }
    return ["srun", "--overlap", "--quiet", *(f"--{name}={value}" for name, value in options.items()), *command]


class SrunTransport:
    """Starts job steps, on this host as on the others."""

    def start(self, host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """See ``Transport``."""
        return piped(srun_argv(host, command))
