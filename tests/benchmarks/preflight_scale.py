"""``python -m tests.benchmarks.preflight_scale [HOSTS]``: preflight of so many simulated hosts, as its user has it.

An ``ssh`` on PATH answers for hosts that are not there after 0.1 to 2 s; some are slow (8 s), some dead (ssh gives up after
``launcher.connect_seconds``), some hang until ``preflight.timeout``, some refuse. Prints the seconds it took, the most
processes at once, and the lines of the table; exits 1 when it took more than 20 s for up to 500 hosts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.fake_ssh import FakeSsh, ready_host

LIMIT_SECONDS = 20.0
CONNECT_SECONDS = 5.0
TIMEOUT_SECONDS = 10.0
WORDS = ("model=llama_3_1b", "cluster=dgx_h100", "zero=stage1", "training=default", "run_dir=run", "data=synthetic")


def main(number: int) -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "bin").mkdir()
        _hosts(FakeSsh(folder / "bin"), folder / "hostfile", number)
        words = [
            "preflight",
            *WORDS,
            "cluster.hostfile=hostfile",
            f"preflight.timeout={TIMEOUT_SECONDS}",
            f"launcher.connect_seconds={CONNECT_SECONDS}",
        ]
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words],
            cwd=folder,
            env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        most = 0
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                most = max(most, len(watched.children()))
            except psutil.NoSuchProcess:
                break
            time.sleep(0.2)
        printed = process.communicate()[0]
        seconds = time.monotonic() - start
    print(printed)
    print(f"{number} hosts: {seconds:.1f} s, at most {most} processes at once, {len(printed.splitlines())} lines")
    return int(number <= 500 and seconds > LIMIT_SECONDS)


def _hosts(ssh: FakeSsh, hostfile: Path, number: int) -> None:
    """One in a hundred each is slow, dead, hangs, refuses."""
    chance = random.Random(1)
    names = [f"node{index:04}" for index in range(1, number + 1)]
    hostfile.write_text("".join(f"{name} slots=8\n" for name in names))
    for index, name in enumerate(names, start=1):
        address = {"interface": "eth0", "address": f"10.{index // 250}.0.{index % 250 + 1}", "prefix": 8}
        kind, delay = {
            10: ("answers", 8.0),
            30: ("dead", CONNECT_SECONDS),
            50: ("answers", 3600.0),
            70: ("refused", 0.1),
        }.get(index % 100, ("answers", chance.uniform(0.1, 2.0)))
        ssh.host(name, kind=kind, delay=delay, facts=ready_host(name, addresses=[address]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
