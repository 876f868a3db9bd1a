"""Real processes that are run to their end on this host."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.launch import processes
from orchestrator.launch.command import LaunchCommand
from orchestrator.launch.processes import Ended, Output, StopRequests, lines_of, meaning, open_log, supervise


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


def interrupt_when(path: Path, *, times: int = 1) -> None:
    def wait_and_interrupt() -> None:
        while not path.exists():
            time.sleep(0.02)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

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
    ("times", "stop_seconds"), [(1, 1.0), (2, 600.0)], ids=["after stop_seconds", "at the second interrupt"]
)
def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, times: int, stop_seconds: float) -> None:
    program = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('up').touch()\n"
        "time.sleep(600)"
    )
    interrupt_when(tmp_path / "up", times=times)
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


def test_a_terminal_that_stands_still_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_DRAIN_SECONDS", 0.2)
    moves = threading.Event()
    with open_log(tmp_path / "log") as log:
        output = Output(log, lambda _line: bool(moves.wait(60)))
        for step in range(3):
            output.write(f"[orchestrator] step {step}\n")
        output.close()
    moves.set()
    assert "step 2" in (tmp_path / "log").read_text()


def test_a_log_goes_on_when_a_full_disk_has_room_again() -> None:
    class Disk(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    log = Disk()
    output = Output(log, lambda _line: None)
    output.write("lost\n")
    log.is_full = False
    output.write("kept\n")
    output.close()
    assert log.getvalue() == "kept\n"


def test_a_disk_that_stays_full_is_no_failure_of_what_was_run(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    outcome, echoed = run(tmp_path, "print('[orchestrator] step 1')")
    assert outcome == Ended(exit_code=0, interrupted=False)
    assert echoed == ["step 1"]


def test_output_without_an_end_of_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LONGEST_LINE", 4)
    assert list(lines_of(io.StringIO("abcdefg\nhi"))) == ["abcd\n", "efg\n", "hi\n"]


def test_what_was_started_with_nohup_does_not_hear_of_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    requests = StopRequests()
    try:
        with requests.listening():
            signal.raise_signal(signal.SIGHUP)
            assert requests.count == 0
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            with requests.listening():
                signal.raise_signal(signal.SIGHUP)
        assert requests.count == 1
    finally:
        signal.signal(signal.SIGHUP, before)
