"""What the metrics and the result of a run say in one number each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.metrics_file import Entry, last_entries, last_entry_with
from orchestrator.sweep_point import Sweep, SweepPoint

_TAIL_BYTES = 2**14
"""Some forty steps."""
_FIRST_STEPS = 2
"""Steps that are not typical: memory is taken for the first time, kernels are chosen, caches filled."""
HELD_OUT_LOSS = "held_out_loss"


def trained_entries(metrics: Path | None) -> list[Entry]:
    """The training steps at the end of a metrics file."""
    entries = [] if metrics is None else last_entries(metrics, tail_bytes=_TAIL_BYTES)
    return [entry for entry in entries if entry.get("kind") == "train"]


def steady(trained: Sequence[Entry], metrics: Path | None) -> Sequence[Entry]:
    """``trained`` without the first entries of the run, if they are among them and not all there is."""
    try:
        begins = metrics is not None and metrics.stat().st_size <= _TAIL_BYTES
    except OSError:
        begins = False
    return (trained[_FIRST_STEPS:] or trained) if begins else trained


def median(entries: Sequence[Entry], key: str) -> float | None:
    """The median of a value over entries; None if none has it."""
    values = [value for entry in entries if (value := number(entry.get(key))) is not None]
    return statistics.median(values) if values else None


def number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def whole(value: Any) -> int | None:
    """A whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def inside(values: Mapping[str, Any], *keys: str) -> Any:
    """What lies at ``keys``, each inside the one before; None if it is not there."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def metric_of(
    point: SweepPoint | None, sweep: Sweep | None, options: Mapping[str, Any], result: Mapping[str, Any], metrics: Path | None
) -> tuple[str | None, float | None]:
    """The objective and its value so far: of a point as it was recorded, else as ``sweep.metric`` says.

    By default it is the held-out loss, and the last loss where there is none.
    """
    if point is not None and point.metric is not None:
        return point.metric_name, number(point.metric)
    asked = sweep.metric if sweep is not None else options.get("sweep.metric")
    for name in (str(asked),) if asked else (HELD_OUT_LOSS, "loss"):
        value = number(inside(result, *name.split("/")))
        if value is None and metrics is not None:
            value = number((last_entry_with(metrics, name) or {}).get(name))
        if value is not None:
            return name, value
    return (str(asked) if asked else None), None
