"""Runs the real command line as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AUDIT = """
import os, sys
def watch(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"):
        os.write(2, ("STARTED A PROCESS: %s\\n" % event).encode())
sys.addaudithook(watch)
from orchestrator.cli import main
main()
"""


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def everything(self) -> str:
        return self.stdout + self.stderr

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.stdout)
        return value


def orchestrator(
    *words: str, cwd: Path, environment: Mapping[str, str] | None = None, watched: bool = False, timeout: float = 300
) -> Ended:
    """Run ``orchestrator WORDS`` in ``cwd``; ``watched`` reports on stderr when it starts a process."""
    start = ["-c", AUDIT] if watched else ["-m", "orchestrator"]
    ended = subprocess.run(
        [sys.executable, *start, *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)
