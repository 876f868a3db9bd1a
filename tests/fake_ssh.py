"""An ``ssh`` for PATH that reaches hosts which are not there: each answers, refuses, hangs or is slow as it is told.

It costs three short processes a host (sh, cat, sleep), so that five hundred fit on two cores.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from orchestrator.launch.preflight import probe
from orchestrator.launch.preflight.facts import OPERATORS, PACKAGES, TOOLS

PROGRAM = """#!/bin/sh
for word; do host=$command; command=$word; done
request=$(cat)
read -r delay kind < "{folder}/$host"
sleep "$delay"
case "$kind" in
  answers) ;;
  noisy) echo "Welcome to $host" ;;
  *)
    read -r code words < "{folder}/$kind.ending"
    case "$words" in *HOST*) words="${{words%%HOST*}}$host${{words#*HOST}}" ;; esac
    echo "$words" >&2
    exit "$code" ;;
esac
case "$request" in
  *'"task": "listen"'*) answer='{mark}{{"port": 29500}}' ;;
  *'"task": "connect"'*) read -r answer < "{folder}/connect.answer" ;;
  *) read -r answer < "{folder}/$host.answer" ;;
esac
printf '%s\\n' "$answer"
"""
ENDINGS = {
    "refused": (255, "ssh: connect to host HOST port 22: Connection refused"),
    "unknown": (255, "ssh: Could not resolve hostname HOST: Name or service not known"),
    "dead": (255, "ssh: connect to host HOST port 22: Connection timed out"),
    "locked": (255, "root@HOST: Permission denied (publickey)."),
    "changed": (255, "Host key verification failed."),
    "crowded": (255, "kex_exchange_identification: Connection closed by remote host"),
    "config": (255, "command-line: line 0: Bad configuration option: nosuch"),
    "strange": (255, "something else"),
    "setup": (127, "launcher.setup failed: module load cuda (exit code 127)"),
    "bare": (127, "bash: line 1: /work/venv/bin/python: No such file or directory"),
    "broken": (1, "ImportError: libpython3.11.so.1.0: cannot open shared object file"),
}
"""Exit code and last words of ssh, or of what it starts there."""


class FakeSsh:
    """Hosts behind a program ``ssh`` in ``folder``, which goes first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "ssh"
        program.write_text(PROGRAM.format(folder=folder, mark=probe.MARK))
        program.chmod(0o755)
        for kind, (code, words) in ENDINGS.items():
            (folder / f"{kind}.ending").write_text(f"{code} {words}\n")

    def host(self, name: str, *, kind: str = "answers", delay: float = 0.0, facts: Mapping[str, Any] | None = None) -> None:
        """A host that does ``kind`` (answers, noisy, or one of ``ENDINGS``) after ``delay`` seconds."""
        (self.folder / name).write_text(f"{delay} {kind}\n")
        answer = probe.MARK + json.dumps(ready_host(name) if facts is None else facts)
        (self.folder / f"{name}.answer").write_text(f"{answer}\n")

    def reaches(self, *addresses: str) -> None:
        """What the hosts say when they are to call the first one: all these addresses answer."""
        (self.folder / "connect.answer").write_text(probe.MARK + json.dumps(dict.fromkeys(addresses)) + "\n")


def ready_host(name: str, **changes: Any) -> dict[str, Any]:
    """What the probe of a GPU host finds where all is well."""
    device = {"name": "H100", "total_bytes": 80 << 30, "free_bytes": 80 << 30, "compute_mode": "Default", "ecc_errors": 0}
    memory = {"total_bytes": 2 << 40, "limit_bytes": 2 << 40, "available_bytes": 2 << 40}
    versions = {"torch": "2.13.0+cu128", "deepspeed": "0.19.8", "transformers": "5.24.0", "wandb": "0.31.0"}
    return {
        "hostname": name,
        "addresses": [],
        "python": "3.11.7",
        "packages": {**dict.fromkeys(PACKAGES, "1.0"), **versions},
        "project": {"version": "0.1.0", "path": "/opt/orchestrator", "digest": "0123456789abcdef"},
        "torch_cuda": "12.8",
        "accelerators": {"driver": "570.1", "cuda": "12.8", "devices": [device] * 8},
        "num_cores": 96,
        "memory": memory,
        "shared_memory_bytes": 64 << 30,
        "open_files": 1 << 20,
        "shared": True,
        "operators": {"folder": "/ops", "built": dict.fromkeys(OPERATORS, True), "locks": {}},
        "tools": {tool: f"/usr/bin/{tool}" for tool in TOOLS},
        "port_is_free": None,
        "unknown": {},
        **changes,
    }


@contextmanager
def running_children() -> Iterator[list[int]]:
    """How many processes this one has started since and that still run, again and again while the context lasts.

    Its end raises what kept it from counting.
    """
    counts, ended, own = [0], threading.Event(), psutil.Process()
    # other tests of this process may keep hosts or a fork server
    earlier = set(own.children())

    def sample() -> None:
        while not ended.wait(0.02):
            counts.append(len(set(own.children()) - earlier))

    with ThreadPoolExecutor(1) as threads:
        sampling = threads.submit(sample)
        try:
            yield counts
        finally:
            ended.set()
    sampling.result()
