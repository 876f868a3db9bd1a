"""The objective of a sweep's point: a value of its result, or of its metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from orchestrator.run_dir import METRICS, RESULT, read_json

HELD_OUT_LOSS = "held_out_loss"
LOSS = "loss"
_NO_METRICS = {"step", "time"}


class ObjectiveError(ValueError):
    """A run that ended well has no objective; the message says what it has."""


def objective(run_dir: Path, metric: str | None) -> tuple[str, float]:
    """Name and value of the objective of a finished run.

    ``metric`` names a number of ``result.json`` (of nested ones with a slash: ``memory/measured_bytes``), or else the last
    value that ``metrics.jsonl`` has of it; None is the held-out loss, and without one the last loss.

    Raises:
        ObjectiveError: there is no such value, or it is not finite.
    """
    values = logged_values(run_dir)
    name = metric or next((name for name in (HELD_OUT_LOSS, LOSS) if name in values), HELD_OUT_LOSS)
    if name not in values:
        near = get_close_matches(name, list(values), n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(sorted(values)) or "none"
        raise ObjectiveError(f"the run has no value {name!r} (sweep.metric); {hint}it has: {known}")
    if not math.isfinite(values[name]):
        raise ObjectiveError(f"{name} is {values[name]}, which is no objective")
    return name, values[name]


def logged_values(run_dir: Path) -> dict[str, float]:
    """Every number that a run has as its metric: the last of each name, the newest attempt's result on top.

    NaN is what was logged last without being finite: an earlier number would hide that the run has diverged.
    """
    values: dict[str, float] = {}
    attempts = sorted(
        (path for path in (run_dir / "attempts").glob("*") if path.name.isdigit()), key=lambda path: int(path.name)
    )
    for attempt in attempts:
        for entry in _entries(attempt / METRICS):
            values |= _not_finite(entry) | _numbers(entry)
    for attempt in attempts:
        if (attempt / RESULT).exists():
            values |= _numbers(read_json(attempt / RESULT))
    return values


def _entries(path: Path) -> list[Mapping[str, Any]]:
    """The entries of a metrics file; a last line that a killed run left unfinished is none."""
    entries: list[Mapping[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _not_finite(entry: Mapping[str, Any]) -> dict[str, float]:
    """What an entry has as null, as JSON knows no NaN; not of a step that was skipped, whose overflow a smaller scale mends."""
    return {} if entry.get("skipped") else {name: math.nan for name, value in entry.items() if value is None}


def _numbers(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and f"{prefix}{name}" not in _NO_METRICS:
            found[f"{prefix}{name}"] = float(value)
    return found
