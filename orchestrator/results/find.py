"""Which runs and sweeps lie in some folders, at whatever depth."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.launch.slurm.job import JOB_RECORD
from orchestrator.run_dir import newest_attempt
from orchestrator.sweep_point import POINT, SWEEP

_MOST_FOLDERS = 100_000
"""Who names a whole disk waits for hours, and is told instead."""


class TooManyFoldersError(ValueError):
    """A folder has more folders than can be looked through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """The directory of a run, or of a sweep's point that may not have become one."""

    path: Path
    name: str
    """What it is called in a table: its path from the folder that was named, or that folder itself."""
    sweep_dir: Path | None
    """The sweep it is a point of."""


@dataclass(slots=True)
class Search:
    """The search through folders."""

    unreadable: list[Path] = field(default_factory=list)
    """Folders that could not be looked into."""
    empty: list[Path] = field(default_factory=list)
    """Folders that were named and hold no run."""
    _seen: set[Path] = field(default_factory=set)
    _looked: int = 0

    def runs(self, folders: Sequence[Path]) -> list[FoundRun]:
        """The runs in ``folders``, in the order of their names; one that lies in several is found once.

        Raises:
            TooManyFoldersError: one of the folders cannot be searched.
        """
        found: list[FoundRun] = []
        for folder in folders:
            self._looked = 0
            inside = list(self._walk(folder, self._sweep_of(folder)))
            if not inside:
                self.empty.append(folder)
            for path, sweep_dir in inside:
                if (place := path.resolve()) not in self._seen:
                    self._seen.add(place)
                    found.append(FoundRun(path=path, name=_name(path, folder, len(folders) == 1), sweep_dir=sweep_dir))
        return found

    def _walk(self, folder: Path, sweep_dir: Path | None) -> Iterator[tuple[Path, Path | None]]:
        self._looked += 1
        if self._looked > _MOST_FOLDERS:
            raise TooManyFoldersError(f"more than {_MOST_FOLDERS} folders were looked through")
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            self.unreadable.append(folder)
            return
        if POINT in names or JOB_RECORD in names or (names.get("attempts") and newest_attempt(folder) is not None):
            yield folder, sweep_dir
            return
        inner = folder if SWEEP in names else sweep_dir
        for name in sorted((name for name, is_folder in names.items() if is_folder and name[0] != "."), key=natural):
            yield from self._walk(folder / name, inner)

    def _sweep_of(self, folder: Path) -> Path | None:
        """A point may be named without its sweep."""
        above = folder.absolute().parent
        return above if (above / SWEEP).is_file() else None


def _name(path: Path, folder: Path, alone: bool) -> str:
    inside = path.relative_to(folder)
    return str(inside if alone and inside.parts else folder / inside)


def natural(text: str) -> list[tuple[int, int, str]]:
    """A sort key in which numbers are in their own order: ``2`` comes before ``10``."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
