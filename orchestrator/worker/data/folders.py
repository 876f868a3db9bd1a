"""The files of a folder, as text is looked for: what links lead to as well, and nothing passed over unsaid."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Every file of ``folder`` and of the folders in it, sorted by their paths. Links are followed, but not in a circle.

    A link that leads nowhere is among them: whether it matters depends on its name.

    Raises:
        OSError: a folder cannot be read.
    """
    return sorted(_below(folder, frozenset()))


def same_file(paths: Sequence[Path]) -> tuple[Path, Path] | None:
    """The first two of ``paths`` that are one file, by links or for being given twice."""
    first: dict[str, Path] = {}
    for path in paths:
        other = first.setdefault(os.path.realpath(path), path)
        if other is not path:
            return other, path
    return None


def _below(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if entry.is_dir():
                yield from _below(path, above | {real})
            elif entry.is_file() or not path.exists():
                yield path
