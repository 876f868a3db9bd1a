"""Somebody else on the hosts, who looks at everything that is open to all while a run lasts."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_PAUSE_SECONDS = 0.02
_OTHERS = 0o077


class Spy:
    """Looks for ``secrets`` in every process list and in files below ``folder``, until the ``with`` ends.

    ``ranks`` are those that were seen to have all of the secrets in their environment, as they should.
    """

    def __init__(self, folder: Path, secrets: Sequence[str]) -> None:
        self._folder = folder
        self._secrets = [secret.encode() for secret in secrets]
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self.rounds = 0
        self.found: set[str] = set()
        self.ranks: set[int] = set()

    def __enter__(self) -> Spy:
        self._watching = self._threads.submit(self._watch)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._threads.shutdown()
        self._watching.result()

    def _watch(self) -> None:
        while not self._over.wait(_PAUSE_SECONDS):
            self.rounds += 1
            for process in Path("/proc").glob("[0-9]*"):
                self._look_at(process)
            if self.rounds % 10 == 0:
                self.found |= {str(path) for path in holding(self._folder, self._secrets) if _is_open_to_others(path)}

    def _look_at(self, process: Path) -> None:
        try:
            words = (process / "cmdline").read_bytes()
            if any(secret in words for secret in self._secrets):
                self.found.add(words.replace(b"\0", b" ").decode(errors="replace"))
            if b"orchestrator.worker.start" in words:
                variables = (process / "environ").read_bytes()
                ranks = [entry.partition(b"=")[2] for entry in variables.split(b"\0") if entry.startswith(b"RANK=")]
                if ranks and all(secret in variables for secret in self._secrets):
                    self.ranks.add(int(ranks[0]))
        except (FileNotFoundError, ProcessLookupError):
            return


def holding(folder: Path, secrets: Sequence[bytes]) -> list[Path]:
    """The files below ``folder`` that have one of ``secrets`` in them."""
    found = []
    for directory, _, names in os.walk(folder):
        for path in (Path(directory, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink() and any(secret in path.read_bytes() for secret in secrets):
                    found.append(path)
    return found


def _is_open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & _OTHERS)
    except FileNotFoundError:
        return False
