"""``metrics.jsonl`` read from its end: what a run last said, however long it has been running.

A line that is being written, or that is no JSON object, is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

TAIL_BYTES = 2**16
_MOST_BYTES = 2**22
"""How far back a value is looked for: some ten thousand entries."""


def last_entries(path: Path, *, tail_bytes: int = TAIL_BYTES) -> list[Entry]:
    """The entries in the last ``tail_bytes`` of a file, in their order; none if it cannot be read."""
    return list(parsed(_tail(path, tail_bytes)))


def last_entry_with(path: Path, key: str) -> Entry | None:
    """The newest entry that has ``key``; None if it has none, or lies more than 4 MiB before the end."""
    mark = f'"{key}":'.encode()
    tail_bytes = TAIL_BYTES
    while True:
        lines = [line for line in _tail(path, tail_bytes) if mark in line]
        for entry in parsed(reversed(lines)):
            if key in entry:
                return entry
        if tail_bytes >= min(_MOST_BYTES, _size(path)):
            return None
        tail_bytes *= 8


def parsed(lines: Iterable[bytes]) -> Iterator[Entry]:
    """The objects among ``lines``."""
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry


def _tail(path: Path, tail_bytes: int) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - tail_bytes, 0))
            return file.read().splitlines()
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
