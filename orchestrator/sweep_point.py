"""What is recorded of a sweep: the sweep itself, and each of its points, in files of their own.

::

    SWEEP_DIR/
      sweep.json          what it was started with, and what it looks for
      0/ 1/ 2/ ...        one directory a point: the run directory of its run (``run_dir.py``), and
        point.json        what it is and how it stands, written when it starts and when it ends
        config.json       its resolved configuration, also where it never became a run

A point is known by its configuration's hash: numbers change with the words of a sweep, the hash does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.run_dir import read_json, write_json

POINT = "point.json"
POINT_CONFIG = "config.json"
SWEEP = "sweep.json"
OF_ONE_START = (
    "command",
    "output",
    "view",
    "estimate",
    "measure",
    "dry_run",
    "follow",
    "rank",
    "last",
    "now",
    "run_dir",
    "sweep",
    "results",
    "export",
    "planner.apply",
    "checkpoint.resume",
)
"""Options that say how one start goes, not what is trained."""


_HOW_IT_IS_STARTED = (
    "preflight",
    "tracking",
    "launcher.backend",
    "launcher.detach",
    "launcher.master_addr",
    "launcher.master_port",
    "launcher.ssh_arguments",
    "launcher.connect_seconds",
    "launcher.hang_timeout",
    "launcher.stop_seconds",
    "launcher.slurm",
)
"""Options that a sweep may change when it goes on: its points stay the same."""


class PointStatus(StrEnum):
    """How a point stands."""

    running = "running"
    finished = "finished"
    infeasible = "infeasible"
    failed = "failed"
    interrupted = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point of a sweep. Times are seconds since the epoch."""

    number: int
    overrides: tuple[str, ...]
    """The words of this point, without those all points share through a file."""
    config_hash: str
    status: PointStatus
    reason: str | None = None
    """Why it is infeasible, failed or interrupted."""
    metric: float | None = None
    """The objective; None where there is none (yet)."""
    metric_name: str | None = None
    exit_code: int | None = None
    """What ``launch`` of this point alone would have ended with; None while it runs."""
    started: float
    ended: float | None = None

    def write(self, run_dir: Path) -> None:
        """Write ``point.json``: readers see all of it or the record before it."""
        write_json(run_dir / POINT, asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep was started with."""

    overrides: tuple[str, ...]
    metric: str | None
    """The option ``sweep.metric``."""
    direction: str
    created: float
    working_directory: str
    config_dir: str | None = None

    def write(self, sweep_dir: Path) -> None:
        """Write ``sweep.json``."""
        write_json(sweep_dir / SWEEP, asdict(self))


def read_sweep(sweep_dir: Path) -> Sweep | None:
    """The sweep in a directory; None if it holds none.

    Raises:
        ValueError: its record is damaged.
    """
    if not (sweep_dir / SWEEP).is_file():
        return None
    try:
        entry = read_json(sweep_dir / SWEEP)
        return Sweep(**{**_known(Sweep, entry), "overrides": tuple(entry["overrides"])})
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{sweep_dir / SWEEP} is damaged: {problem}") from None


def read_point(run_dir: Path) -> SweepPoint | None:
    """The point whose run directory this is; None if it is none.

    Raises:
        ValueError: its record is damaged.
    """
    if not (run_dir / POINT).is_file():
        return None
    try:
        entry = read_json(run_dir / POINT)
        known = _known(SweepPoint, entry)
        return SweepPoint(**{**known, "overrides": tuple(entry["overrides"]), "status": PointStatus(entry["status"])})
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{run_dir / POINT} is damaged: {problem}") from None


def read_points(sweep_dir: Path) -> dict[Path, SweepPoint]:
    """The points of a sweep by their directories, in the order of their numbers.

    Raises:
        ValueError: a record is damaged.
    """
    points = {path.parent: read_point(path.parent) for path in sweep_dir.glob(f"*/{POINT}")}
    known = {path: point for path, point in points.items() if point is not None}
    return dict(sorted(known.items(), key=lambda item: item[1].number))


def config_hash(config: Mapping[str, Any]) -> str:
    """A hash of what is trained: of a resolved configuration without what one start of it alone is told (16 hex digits)."""
    kept = _without(config, (*OF_ONE_START, *_HOW_IT_IS_STARTED))
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _known(record: type[Sweep | SweepPoint], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record without those that another version has added."""
    return {field.name: entry[field.name] for field in fields(record) if field.name in entry}


def _without(config: Mapping[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """``config`` without the options that ``paths`` name."""
    inner: dict[str, tuple[str, ...]] = {}
    for path in paths:
        section, _, rest = path.partition(".")
        if rest:
            inner[section] = (*inner.get(section, ()), rest)
    return {
        key: _without(value, inner[key]) if key in inner and isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in paths
    }
