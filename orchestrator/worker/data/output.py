"""The folder that ``prepare`` fills: whose it is, who may write to it, and whether it was begun with the same."""

from __future__ import annotations

import errno
import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.tokens.store import UNFINISHED
from orchestrator.worker.data.made_from import MADE_FROM, MadeFrom, differences, read_made_from, write_made_from
from orchestrator.worker.data.shards import read_state

_FIELD = "prepare.output"
_LOCK = "lock"
LINGER_SECONDS = 10.0
"""What a prepare that was killed had started sees it, and ends, within this."""


def wait_for_others(output: Path) -> None:
    """Give what is left of a killed prepare the time to end; one that goes on after that is another's."""
    until = time.monotonic() + LINGER_SECONDS
    while time.monotonic() < until and _is_held(output / UNFINISHED / _LOCK):
        time.sleep(0.1)


@contextmanager
def begun(output: Path, now: MadeFrom) -> Iterator[None]:
    """Be the only one who writes to the folder, which was begun with ``now`` or is begun now.

    Raises:
        ConfigurationError: it holds something else, is written to by another, or was begun with something else.
    """
    _require_own(output)
    with _alone(output):
        before = read_made_from(output)
        if before is not None and (findings := list(differences(before, now, output, is_whole=False))):
            if read_state(output).shards:
                raise ConfigurationError(findings)
            _empty(output)
        write_made_from(output, now)
        yield


def _require_own(output: Path) -> None:
    """A folder that prepare has not begun must hold nothing: what is there is somebody's."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        own = {UNFINISHED, f".{MADE_FROM}"}
        other = None if (output / MADE_FROM).is_file() else next((p for p in output.iterdir() if p.name not in own), None)
    except OSError as problem:
        message = f"{output} cannot be made a folder: {problem.strerror}"
        raise ConfigurationError([error("prepare-output", _FIELD, message, "name another folder")]) from None
    if other is not None:
        message = f"{output} holds {other.name}, and was not made by prepare"
        raise ConfigurationError([error("prepare-output", _FIELD, message, "name an empty or a new folder")])


def _is_held(path: Path) -> bool:
    try:
        with path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno in (errno.EAGAIN, errno.EACCES)
    return False


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    try:
        (output / UNFINISHED).mkdir(exist_ok=True)
        opened = (output / UNFINISHED / _LOCK).open("w")
    except OSError as problem:
        message = f"{output} cannot be written to: {problem.strerror}"
        raise ConfigurationError([error("prepare-output", _FIELD, message, "name another folder")]) from None
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            busy = problem.errno in (errno.EAGAIN, errno.EACCES)
            message = f"another prepare is writing to {output}" if busy else f"{output} cannot be locked: {problem.strerror}"
            fix = "wait for it" if busy else "name a folder on a disk with locks"
            raise ConfigurationError([error("prepare-output", _FIELD, message, fix)]) from None
        yield


def _empty(output: Path) -> None:
    """Nothing in the folder is complete: it may be begun with anything."""
    for path in [*output.iterdir(), *(output / UNFINISHED).iterdir()]:
        if path.name not in (UNFINISHED, _LOCK):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
