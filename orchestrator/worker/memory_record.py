"""What is recorded of the memory that ranks took, beside what the plan had said. No torch: a script may do without it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.units import KIB


def rank_record(
    plan: Mapping[str, Any], rank: int, *, allocated_bytes: int, measured_bytes: int, on_cpu: bool
) -> dict[str, Any]:
    """What one rank took. On a GPU the prediction is that of torch alone, without the device's context."""
    key = "device_bytes" if on_cpu else "reserved_bytes"
    classes = plan["memory"]["device"] if plan["memory"] else ()
    predicted = next((int(entry[key]) for entry in classes if rank in entry["ranks"]), None)
    return {
        "rank": rank,
        "predicted_bytes": predicted,
        "measured_bytes": measured_bytes,
        "allocated_bytes": allocated_bytes,
    }


def report_of(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``memory`` of ``result.json``: the fullest rank, and all of them."""
    worst = max(ranks, key=lambda entry: int(entry["measured_bytes"]))
    return {"predicted_bytes": worst["predicted_bytes"], "measured_bytes": worst["measured_bytes"], "ranks": list(ranks)}


def peak_resident_bytes() -> int:
    """The largest resident set of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would report the parent's peak of before exec: the launcher's, not ours.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * KIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB
