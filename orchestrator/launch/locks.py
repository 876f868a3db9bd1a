"""Locks between launches of one user on one machine: files that are locked as long as their holder lives, however it ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

_LOOK_SECONDS = 0.5


def runtime_dir() -> Path:
    """Where this user's launches on this machine meet; of one batch job, its own: what it was given is no other's."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    place = Path(base) / "orchestrator" if base and os.access(base, os.W_OK) else _in_temporary()
    job = os.environ.get("SLURM_JOB_ID")
    place = place / f"job-{job}" if job else place
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


def _in_temporary() -> Path:
    place = Path(tempfile.gettempdir()) / f"orchestrator-{os.getuid()}"
    place.mkdir(exist_ok=True, mode=0o700)
    if place.stat().st_uid != os.getuid():
        raise PermissionError(f"{place} belongs to another user")
    return place


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of ``path``, waiting for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_at_once(path: Path) -> Iterator[bool]:
    """Hold the lock of ``path`` if it is free; gives whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        yield _take(file)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of ``path``."""
    if not path.exists():
        return False
    with path.open("a") as file:
        return not _take(file)


@contextmanager
def leased(
    names: Sequence[str], count: int, folder: Path, *, waiting: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, ...]]:
    """Hold ``count`` of the things that ``names`` stand for, waiting until so many are free; gives their names.

    All at once or none: two that wait never hold what the other needs. ``waiting`` is called once if it has to wait.
    """
    assert 0 <= count <= len(names)
    folder.mkdir(parents=True, exist_ok=True)
    waited = False
    with ExitStack() as held:
        while True:
            with locked(folder / ".taking"):
                taken = _take_free(names, count, folder)
            if len(taken) == count:
                break
            if not waited:
                waiting()
                waited = True
            time.sleep(_LOOK_SECONDS)
        for lease in taken.values():
            held.enter_context(lease)
        yield tuple(taken)


def _take_free(names: Sequence[str], count: int, folder: Path) -> dict[str, IO[str]]:
    """Lock files of the first ``count`` that are free; of none if they are fewer."""
    taken: dict[str, IO[str]] = {}
    for name in names:
        if len(taken) == count:
            break
        file = (folder / name.replace("/", "_")).open("a")
        if _take(file):
            taken[name] = file
        else:
            file.close()
    if len(taken) < count:
        for lease in taken.values():
            lease.close()
        return {}
    return taken


def _take(file: IO[str]) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
