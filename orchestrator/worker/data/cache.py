"""The cache on disk: entries appear whole, are made by one process of a host, and are found again by what shaped them."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error

ARRAY = "array.npy"


def cache_key(shape: Mapping[str, Any]) -> str:
    """A short name for everything that decides what an entry holds."""
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:24]


def cached_folder(folder: Path, *, is_complete: Callable[[Path], bool], build: Callable[[Path], None]) -> bool:
    """Make sure that ``folder`` holds a complete entry; return whether this call built it.

    ``build`` fills a scratch folder beside it, which then takes its name. While one process builds, the others of all
    hosts that share the disk wait here, and find the entry afterwards.

    Raises:
        ConfigurationError: the file system has no locks.
    """
    if is_complete(folder):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        _wait_for(lock)
        if is_complete(folder):
            return False
        for left in (folder, *folder.parent.glob(f".{folder.name}.*/")):  # damaged, or of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            entry = Path(scratch) / "entry"
            entry.mkdir()
            build(entry)
            entry.rename(folder)
        return True


def cached_array(cache_dir: Path, shape: Mapping[str, Any], build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """The array that ``build`` makes of ``shape``, mapped from disk: the processes of a host share its memory.

    Raises:
        ConfigurationError: the file system has no locks.
    """
    folder = cache_dir.expanduser() / "indices" / cache_key(shape)
    cached_folder(
        folder,
        is_complete=lambda path: (path / ARRAY).is_file(),
        build=lambda scratch: np.save(scratch / ARRAY, build()),
    )
    array: NDArray[Any] = np.load(folder / ARRAY, mmap_mode="r")
    return array


def _wait_for(lock: TextIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as problem:
        if problem.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise
        folder = Path(lock.name).parent
        message = f"the file system of {folder} has no locks ({problem.strerror}): ranks would overwrite each other's files"
        fix = "set data.cache_dir to a folder on a local disk, or have the network's disk mounted with locks"
        raise ConfigurationError([error("data-cache", "data.cache_dir", message, fix)]) from None
