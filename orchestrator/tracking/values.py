"""What of an entry is a measurement, and under which name it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NO_MEASUREMENT = ("kind", "step", "time")


def measurements(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry by the names they are recorded under: ``train/loss``, ``evaluate/held_out_loss``."""
    return {
        f"{entry['kind']}/{key}": value
        for key, value in entry.items()
        if key not in _NO_MEASUREMENT and isinstance(value, int | float)
    }
