"""Processes in a session of their own: what they print is passed on, and none of them is left behind.

Standard library and psutil only: every host of a run loads this.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from orchestrator.launch.command import LaunchCommand

PROGRESS = "[orchestrator] "
"""Lines of the workers that carry this are for the user; all others are for the log."""

_DRAIN_SECONDS = 5.0
_POLL_SECONDS = 0.1
_MOST_WAITING = 10_000
"""Progress lines that wait for a terminal; those beyond are in the log alone."""
_LONGEST_LINE = 1 << 20
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: its exit code, and whether the user had asked it to stop."""

    exit_code: int
    interrupted: bool


def supervise(command: LaunchCommand, *, log_file: Path, echo: Callable[[str], None], stop_seconds: float) -> Ended:
    """Run ``command`` on this host to its end; every process of its session has ended when this returns.

    Everything printed goes to ``log_file``; progress lines go to ``echo`` as well. SIGINT or SIGTERM stops it
    (SIGTERM to its processes, SIGKILL after ``stop_seconds``); a second one kills at once.
    """
    requests = StopRequests()
    with open_log(log_file) as log, requests.listening():
        process = subprocess.Popen(
            command.argv,
            env={**os.environ, **command.environment},
            cwd=command.working_directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        session = Session(leader=process.pid, stop_seconds=stop_seconds)
        assert process.stdout is not None
        output = Output(log, echo)
        reader = threading.Thread(target=output.forward, args=(process.stdout,), daemon=True)
        reader.start()
        while process.poll() is None:
            session.obey(requests.count)
            time.sleep(_POLL_SECONDS)
        # the launcher may have died before its ranks: what is left of the session goes now
        session.clear()
        reader.join(_DRAIN_SECONDS)
        output.close()
    if output.fault is not None:
        raise output.fault
    return Ended(exit_code=process.returncode, interrupted=requests.count > 0)


def meaning(exit_code: int) -> str:
    """What an exit code of DeepSpeed's launcher says."""
    number = signal_of(exit_code)
    if number == signal.SIGKILL:
        return "a process was killed (SIGKILL), most likely by the host's out-of-memory killer"
    if number == signal.SIGBUS:
        return "a process died with SIGBUS: /dev/shm is too small"
    if number is not None:
        return f"a process was ended by {signal.Signals(number).name}"
    return f"the launcher ended with exit code {exit_code}"


def signal_of(exit_code: int) -> int | None:
    """The signal that ended a process, by the launcher's exit code: of a rank killed by signal N it is 256 - N."""
    number = -exit_code if exit_code < 0 else 256 - exit_code if exit_code > 192 else 0
    return number if number in {member.value for member in signal.Signals} else None


class Output:
    """Where the lines of a run go: all into the log, progress to the user. Neither's end is the end of the run.

    ``echo`` is called on a thread of its own: a terminal that takes nothing (Ctrl-S, a pager) keeps nobody waiting.
    """

    def __init__(self, log: IO[str], echo: Callable[[str], None]) -> None:
        self._log, self._echo = log, echo
        self._logs = True
        self._is_closed = False
        self._lock = threading.Lock()
        self._progress: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._shows = threading.Thread(target=self._show, daemon=True)
        self._shows.start()
        self.fault: Exception | None = None
        """What went wrong in ``echo`` itself, besides a terminal that has gone."""

    def write(self, line: str) -> None:
        """Pass a line on, with its end."""
        _, mark, progress = line.partition(PROGRESS)
        with self._lock:
            if self._is_closed:
                # a link that was given up, and speaks again
                return
            # tried again each time: a full disk may have room later
            self._logs = _succeeds(partial(self._log.write, line), tells=self._logs)
        if mark:
            with suppress(queue.Full):
                self._progress.put_nowait(progress.rstrip())

    def forward(self, stream: IO[str]) -> None:
        """Read to the end whatever happens to the terminal or the disk: a pipe nobody reads would end the training."""
        with stream:
            for line in lines_of(stream):
                self.write(line)

    def close(self) -> None:
        """Show what is left, if anybody takes it; what is written from now on is lost."""
        with self._lock:
            self._is_closed = True
        with suppress(queue.Full):
            self._progress.put(None, timeout=_DRAIN_SECONDS)
        self._shows.join(_DRAIN_SECONDS)

    def _show(self) -> None:
        try:
            for line in iter(self._progress.get, None):
                if not _succeeds(partial(self._echo, line)):
                    return
        except Exception as problem:  # a bug; who waits for the end of the run is told
            self.fault = problem


def lines_of(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream, each with its end; one without end is cut before it fills the memory."""
    while line := stream.readline(_LONGEST_LINE):
        yield line if line.endswith("\n") else line + "\n"


@contextmanager
def open_log(path: Path) -> Iterator[IO[str]]:
    """A log that is written line by line; a disk that is full when it is closed takes nothing else away.

    Raises:
        OSError: it cannot be opened.
    """
    log = path.open("w", encoding="utf-8", buffering=1)
    try:
        yield log
    finally:
        with suppress(OSError):
            log.close()


def _succeeds(action: Callable[[], object], *, tells: bool = True) -> bool:
    try:
        action()
    except (OSError, ValueError, SystemExit) as problem:
        # the terminal has gone, the disk is full, or the log was closed because the run has ended
        if tells:
            with suppress(OSError, ValueError):
                print(f"the run goes on, but its output is lost from here: {problem}", file=sys.__stderr__)
        return False
    return True


class StopRequests:
    """Counts the signals that ask to stop. Nothing else happens in the handler, wherever it strikes."""

    def __init__(self) -> None:
        self.count = 0
        self.time_limit_is_near = False
        """Whether a batch system said so: SIGUSR1."""
        self.terminated = False
        """Whether SIGTERM was among them."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM, SIGHUP and SIGUSR1 for the time of a run, and ignore Ctrl-Z: who sleeps is taken for dead.

        What was started with nohup still hears nothing of its terminal.
        """
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        previous = {number: signal.signal(number, self._note) for number in numbers}
        previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.time_limit_is_near = True
        elif number == signal.SIGHUP:
            # a terminal that closes sends more than one
            self.count = max(self.count, 1)
        else:
            self.terminated |= number == signal.SIGTERM
            self.count += 1


@dataclass(slots=True, kw_only=True)
class Session:
    """A command and everything it started. They share the session of ``leader``, but may outlive it."""

    leader: int
    stop_seconds: float
    first_signal: signal.Signals = signal.SIGTERM
    """What a first request to stop sends."""
    obeyed: int = field(default=0, init=False)
    deadline: float = field(default=float("inf"), init=False)

    def obey(self, requests: int) -> None:
        """Stop as often as was asked: SIGTERM first, SIGKILL for a second request or when the first took too long."""
        if requests > self.obeyed:
            self.obeyed = requests
            self.signal(self.first_signal if requests == 1 else signal.SIGKILL)
            self.deadline = time.monotonic() + self.stop_seconds
        elif time.monotonic() > self.deadline:
            self.signal(signal.SIGKILL)

    def members(self) -> list[psutil.Process]:
        """Living processes of the session, by its id; a name is never looked at."""
        return [process for process in psutil.process_iter() if _session_of(process.pid) == self.leader and _lives(process)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for member in self.members():
            # it has gone, or a program with other rights was started (sudo)
            with suppress(psutil.Error):
                member.send_signal(number)

    def clear(self) -> None:
        """End what the leader left: SIGTERM, then SIGKILL."""
        self.signal(self.first_signal)
        _, alive = psutil.wait_procs(self.members(), timeout=self.stop_seconds)
        self.signal(signal.SIGKILL)
        psutil.wait_procs(alive, timeout=_DRAIN_SECONDS)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
