"""A run on several hosts of the rig, as its user has it: started on host0, watched from outside."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.multihost.rig import INTERFACE, Host, Started, command_line, eventually

START_SECONDS = 240.0
"""For the ranks to start on a machine that is busy otherwise."""
SMOKE = ("experiment=smoke", "training.train_batch_size=null", "training.gradient_accumulation_steps=1")
ENDLESS = ("training.max_steps=1000000", "checkpoint.save_at_end=false", "training.evaluate_sequences=8")
ASLEEP = """
import os, signal, time


def asleep_for_ever(*_):
    while True:
        time.sleep(1000)


if "RANK" in os.environ:
    signal.signal(signal.SIGUSR1, asleep_for_ever)
"""
"""``sitecustomize`` of a host whose ranks fall asleep at SIGUSR1."""


def hostfile(folder: Path, hosts: tuple[Host, ...], slots: int = 1) -> Path:
    """A hostfile that names them."""
    path = folder / "hostfile"
    path.write_text("".join(f"{host.name} slots={slots}\n" for host in hosts))
    return path


def words(folder: Path, hosts: tuple[Host, ...], *more: str, slots: int = 1) -> list[str]:
    """The command line that trains on ``hosts``."""
    several = (f"cluster.hostfile={hostfile(folder, hosts, slots)}", f"launcher.environment.GLOO_SOCKET_IFNAME={INTERFACE}")
    return [sys.executable, "-m", "orchestrator", "launch", *SMOKE, "run_dir=run", *several, *more]


@dataclass
class Job:
    """A run that has been started."""

    folder: Path
    hosts: tuple[Host, ...]
    controller: Started
    """The launching command; a detached run goes on when it has ended."""
    before: list[psutil.Process]
    """What lived on its hosts already."""

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def attempt(self) -> Path:
        return self.run_dir / "attempts" / "1"

    @property
    def printed(self) -> str:
        return self.controller.printed

    def steps(self) -> list[dict[str, Any]]:
        """What ``metrics.jsonl`` has of the training steps so far."""
        path = self.attempt / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["kind"] == "train"]

    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.steps()]

    def comes_further(self, steps: int = 3) -> None:
        """Wait until it has trained some steps more."""
        wanted = len(self.steps()) + steps

        def there() -> bool:
            assert not self.controller.outer.poll(), self.printed
            return len(self.steps()) >= wanted

        eventually(there, within=START_SECONDS, what=f"step {wanted} of {self.run_dir}")

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank, on whatever host."""
        living = [process for host in self.hosts for process in host.processes(str(self.run_dir))]
        found = [process for process in living if _is_rank(process, number)]
        (process,) = [process for process in found if process.ppid() not in {other.pid for other in found}]
        return process

    def processes(self) -> list[psutil.Process]:
        """What lives on its hosts, and was not there before it.

        The end of a connection that sshd keeps is the host's own: after a cut it waits as long as TCP does.
        """
        living = [process for host in self.hosts for process in host.processes()]
        return [process for process in living if process not in self.before and not _is_sshd(process)]

    def ends(self, within: float) -> int:
        """Its exit code."""
        return self.controller.wait(within)


def start(
    folder: Path,
    hosts: tuple[Host, ...],
    *more: str,
    slots: int = 1,
    environment: Mapping[str, str] | None = None,
    on: Host | None = None,
) -> Job:
    """Start a run, on its first host or another."""
    folder.mkdir(parents=True)
    argv = words(folder, hosts, *more, slots=slots)
    before = [process for host in hosts for process in host.processes()]
    started = (on or hosts[0]).start(*argv, cwd=folder, log=folder / "printed.log", environment=environment)
    return Job(folder=folder, hosts=hosts, controller=started, before=before)


@dataclass(frozen=True)
class Ending:
    """How a run ended after a fault."""

    code: int
    detect_seconds: float
    stopped_seconds: float
    orphans: list[str]
    printed: str
    """Since the fault."""


def ending(job: Job, strike: Callable[[], object], *, within: float, victims: Sequence[psutil.Process] = ()) -> Ending:
    """Strike a run that trains, and follow it to the last process on any host.

    The fault is detected when the first process ends that is none of the ``victims``.
    """
    others = [process for process in job.processes() if process not in victims]
    said_before = len(job.printed)
    struck = time.monotonic()
    strike()
    detected = stopped = None
    while stopped is None and time.monotonic() - struck < within:
        if detected is None and not all(map(_lives, others)):
            detected = time.monotonic() - struck
        if job.controller.outer.poll() is not None and not job.processes():
            stopped = time.monotonic() - struck
        time.sleep(0.1)
    orphans = [command_line(process) for process in job.processes()]
    assert job.controller.outer.poll() is not None, f"it has not ended within {within:.0f} s: {job.printed}"
    return Ending(job.ends(1), detected or within, stopped or within, orphans, job.printed[said_before:])


def _is_rank(process: psutil.Process, number: int) -> bool:
    try:
        return process.environ().get("RANK") == str(number) and "orchestrator.worker.start" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _is_sshd(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "sshd")
    except psutil.NoSuchProcess:
        return True


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
