"""Real processes that are run to their end on this host."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.launch.command import LaunchCommand
from orchestrator.launch.processes import Ended, Session, meaning, supervise

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


def run(tmp_path: Path, program: str, *, stop_seconds: float = 10.0) -> tuple[Ended, list[str]]:
    echoed: list[str] = []
    command = LaunchCommand(
        argv=(sys.executable, "-u", "-c", program), environment={"MARK": str(tmp_path)}, working_directory=tmp_path
    )
    outcome = supervise(command, log_file=tmp_path / "log", echo=echoed.append, stop_seconds=stop_seconds)
    return outcome, echoed


def left_over(tmp_path: Path) -> list[int]:
    """Processes that carry this test's mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def interrupt_when(*paths: Path) -> None:
    """Ctrl-C as soon as a file is there, and again with the next."""

    def wait_and_interrupt() -> None:
        for path in paths:
            while not path.exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait_and_interrupt, daemon=True).start()


def test_progress_is_passed_on_and_everything_is_logged(tmp_path: Path) -> None:
    outcome, echoed = run(tmp_path, "print('noise'); print('host-1: [orchestrator] step 1'); raise SystemExit(7)")
    assert outcome == Ended(exit_code=7, interrupted=False)
    assert echoed == ["step 1"]
    assert "noise" in (tmp_path / "log").read_text()


def test_ranks_that_outlive_their_launcher_are_ended(tmp_path: Path) -> None:
    program = (
        "import os, signal, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    outcome, _ = run(tmp_path, program)
    assert outcome.exit_code == -signal.SIGKILL
    assert not left_over(tmp_path)


def test_a_process_that_starts_while_others_are_killed_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Member(psutil.Popen):
        def send_signal(self, number: int) -> None:
            if number == signal.SIGKILL and len(there) == 1:
                there.append(Member(SLEEPS))
            if number != signal.SIGTERM:
                super().send_signal(number)

    there = [Member(SLEEPS)]
    monkeypatch.setattr(Session, "members", lambda _: [member for member in there if member.poll() is None])
    try:
        Session(leader=there[0].pid, stop_seconds=0.1).clear()
        assert [member.poll() for member in there] == [-signal.SIGKILL] * 2
    finally:
        for member in there:
            with suppress(psutil.NoSuchProcess):
                member.kill()


def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    program = (
        "import pathlib, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "pathlib.Path('up').touch()\n"
        "child.wait()"
    )
    interrupt_when(tmp_path / "up")
    outcome, _ = run(tmp_path, program)
    assert outcome.interrupted
    assert not left_over(tmp_path)


@pytest.mark.parametrize(
    ("files", "stop_seconds"),
    [(("up",), 1.0), (("up", "asked"), 600.0)],
    ids=["after stop_seconds", "at the second interrupt"],
)
def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, files: tuple[str, ...], stop_seconds: float) -> None:
    program = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: pathlib.Path('asked').touch())\n"
        "pathlib.Path('up').touch()\n"
        "time.sleep(600)"
    )
    interrupt_when(*(tmp_path / name for name in files))
    outcome, _ = run(tmp_path, program, stop_seconds=stop_seconds)
    assert outcome == Ended(exit_code=-signal.SIGKILL, interrupted=True)
    assert not left_over(tmp_path)


def test_a_terminal_that_has_gone_does_not_end_the_run(tmp_path: Path) -> None:
    def gone(_line: str) -> None:
        raise BrokenPipeError

    program = "for step in range(2000): print('[orchestrator] step', step)\nraise SystemExit(5)"
    command = LaunchCommand(argv=(sys.executable, "-u", "-c", program), environment={}, working_directory=tmp_path)
    outcome = supervise(command, log_file=tmp_path / "log", echo=gone, stop_seconds=10)
    assert outcome.exit_code == 5
    assert "step 1999" in (tmp_path / "log").read_text()


def test_exit_codes_are_explained() -> None:
    assert "out-of-memory" in meaning(247)
    assert "out-of-memory" in meaning(-9)
    assert "/dev/shm" in meaning(256 - 7)
    assert "SIGSEGV" in meaning(245)
    assert "exit code 1" in meaning(1)
