"""The thread of each rank that looks at the lease: ends the process when it is over, and does what the controller asks."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

from orchestrator.lease import OVER_EXIT_CODE, RENEW_SECONDS, LeaseWatch, Request
from orchestrator.presence import STACKS

_SAY_SECONDS = 1.0


def watch_lease(attempt: Path, *, rank: int) -> threading.Event:
    """Watch the lease of ``attempt`` from now on; the event is set when the run is asked to save and stop.

    A rank that was started without a controller has no lease, and its event is never set.
    """
    stop = threading.Event()
    watch = LeaseWatch(attempt)
    if watch.is_held:
        threading.Thread(target=_watch, args=(watch, attempt, rank, stop), name="lease", daemon=True).start()
    return stop


def _watch(watch: LeaseWatch, attempt: Path, rank: int, stop: threading.Event) -> None:
    """The thread works while the main thread waits in a collective: that lets go of the interpreter."""
    pause = threading.Event()
    before = Request.go_on
    while True:
        sight = watch.look()
        if sight.reason is not None:
            _end_process(f"rank {rank} ends: {sight.reason}\n")
        if sight.request is Request.save_and_stop:
            stop.set()
        if sight.request is Request.dump_stacks and before is not Request.dump_stacks:
            _dump_stacks(attempt / STACKS / f"{rank}.txt")
        before = sight.request
        pause.wait(RENEW_SECONDS)


def _dump_stacks(path: Path) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
    except OSError as problem:
        print(f"the stacks could not be written: {problem}", file=sys.stderr)


def _end_process(why: str) -> NoReturn:
    """At once and whatever the main thread does. Nobody may be reading our output any more: that must not keep us."""

    def say() -> None:
        try:
            os.write(sys.stderr.fileno(), why.encode())
        except OSError:
            return

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    speaker.join(_SAY_SECONDS)
    os._exit(OVER_EXIT_CODE)
