"""The agent of a host: ``python -m orchestrator.launch.agent``, started by the controller of a run, over ssh or here.

It takes its orders from standard input and answers on standard output (``protocol``), starts the launcher in a session of
its own, and leaves no process of that session behind: not when it is asked to stop, not when standard input ends or stays
silent because the controller or the link has died. Standard library and psutil only.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any

from orchestrator.launch.ports import free_port
from orchestrator.launch.processes import Session, lines_of
from orchestrator.launch.protocol import BEAT_SECONDS, SILENCE_SECONDS, StartOrder, decode, encode
from orchestrator.launch.rank_watch import Changes, RankWatch
from orchestrator.launch.setup_lines import after_setup

_POLL_SECONDS = 0.1
_MOST_QUEUED = 10_000
"""Lines that wait for a slow link; then the ranks wait to print."""
_DRAIN_SECONDS = 5.0
_FOLDER_SECONDS = 60.0
"""NFS believes for so long what it has seen of a folder (``acdirmax``)."""
NOT_STARTED = 127
"""In place of an exit code: the launcher is not there."""


def main() -> None:
    """Serve one run, and exit with the code of what was started."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _setting(stop))
    replies = Replies(sys.stdout.buffer)
    orders = Orders(sys.stdin.buffer, stop)
    replies.say({"event": "ready", "host": socket.gethostname(), "pid": os.getpid(), "port": free_port()})
    while orders.start is None and not orders.stops:
        replies.beat()
        time.sleep(_POLL_SECONDS)
    if orders.start is not None:
        if orders.start.argv:
            serve(orders.start, orders, replies)
        _remove_swap_files(orders.start)
    replies.say({"event": "ended", "reason": orders.reason})
    replies.close()
    # the thread that reads orders may hang in a pipe that never ends
    os._exit(0)


def serve(order: StartOrder, orders: Orders, replies: Replies) -> None:
    """Run what was ordered to its end; nothing of it is left when this returns."""
    _await_folder(order.working_directory, orders, replies)
    try:
        process = _started(order)
    except OSError as problem:
        replies.say({"event": "output", "text": f"{problem.filename or order.argv[0]}: {problem.strerror}\n"})
        replies.say({"event": "exited", "exit_code": NOT_STARTED, "left": []})
        return
    replies.say({"event": "started", "session": process.pid})
    session = Session(leader=process.pid, stop_seconds=order.stop_seconds, first_signal=signal.Signals[order.stop_signal])
    assert process.stdout is not None
    reader = threading.Thread(target=_pass_on, args=(process.stdout, replies), daemon=True)
    reader.start()
    ranks = RankWatch(session)
    while process.poll() is None:
        _report(ranks.look(), replies)
        session.obey(orders.stops)
        replies.beat()
        ranks.wait(_POLL_SECONDS)
    # the launcher may have died before its ranks: what is left of the session goes now
    _report(ranks.scan(), replies)
    replies.say({"event": "exited", "exit_code": process.returncode, "left": ranks.left()})
    clearing = threading.Thread(target=session.clear, daemon=True)
    clearing.start()
    while clearing.is_alive():
        replies.beat()
        clearing.join(_POLL_SECONDS)
    reader.join(_DRAIN_SECONDS)


class Orders:
    """What the controller wants. ``stops`` counts its requests to stop; a controller that has gone wants it as well."""

    def __init__(self, stream: IO[bytes], signalled: threading.Event) -> None:
        self._stream = stream
        self._signalled = signalled
        self._asked = 0
        self._heard = time.monotonic()
        self._closed = False
        self.start: StartOrder | None = None
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def stops(self) -> int:
        """How often it was asked to stop."""
        return max(self._asked, int(self.reason is not None))

    @property
    def reason(self) -> str | None:
        """Why it stops; None while it need not."""
        if self._asked:
            return "asked"
        if self._signalled.is_set():
            return "signal"
        if self._closed:
            return "the controller has gone"
        if time.monotonic() - self._heard > SILENCE_SECONDS:
            return "the controller is silent"
        return None

    def _read(self) -> None:
        for line in self._stream:
            self._heard = time.monotonic()
            message = decode(line) or {}
            if message.get("do") == "start":
                self.start = StartOrder.from_message(message)
            elif message.get("do") == "stop":
                self._asked += 1
        self._closed = True


class Replies:
    """What is sent to the controller, by a thread of its own: a slow link must not keep the agent from acting."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._room = threading.BoundedSemaphore(_MOST_QUEUED)
        self._beaten = time.monotonic()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message; never waits."""
        self._queue.put(message)

    def print(self, line: str) -> None:
        """Send a line of output; waits while too many others do."""
        self._room.acquire()
        self._queue.put({"event": "output", "text": line})

    def beat(self) -> None:
        """Say every few seconds that the agent lives."""
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self._beaten = time.monotonic()
            self.say({"event": "beat"})

    def close(self) -> None:
        """Send what is left, if anybody takes it."""
        self._queue.put(None)
        self._thread.join(_DRAIN_SECONDS)

    def _write(self) -> None:
        gone = False
        while (message := self._queue.get()) is not None:
            try:
                if not gone:
                    self._stream.write(encode(message))
                    self._stream.flush()
            except OSError:
                # nobody reads any more; the orders end as well, and the output must still be taken from the ranks
                gone = True
            if message["event"] == "output":
                self._room.release()


def _await_folder(path: str, orders: Orders, replies: Replies) -> None:
    """A network disk may show a new folder late on a host that has looked for it before, as preflight does."""
    until = time.monotonic() + _FOLDER_SECONDS
    while not Path(path).is_dir() and time.monotonic() < until and not orders.stops:
        replies.beat()
        time.sleep(_POLL_SECONDS)


def _started(order: StartOrder) -> subprocess.Popen[str]:
    return subprocess.Popen(
        after_setup(order.setup, order.argv),
        env={**os.environ, **order.environment},
        cwd=order.working_directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _pass_on(stream: IO[str], replies: Replies) -> None:
    with stream:
        for line in lines_of(stream):
            replies.print(line)


def _report(changes: Changes, replies: Replies) -> None:
    if changes.seen or changes.gone:
        replies.say({"event": "ranks", "seen": list(changes.seen.items()), "gone": list(changes.gone.items())})


def _remove_swap_files(order: StartOrder) -> None:
    """Workers that were killed could not remove what they had on this host's NVMe disk."""
    if order.swap_directory is None:
        return
    try:
        owner = json.loads((Path(order.swap_directory) / order.swap_owner_file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if owner.get("run_dir") == order.swap_owner:
        shutil.rmtree(order.swap_directory, ignore_errors=True)


def _setting(event: threading.Event) -> Any:
    def note(_number: int, _frame: FrameType | None) -> None:
        event.set()

    return note


if __name__ == "__main__":
    main()
