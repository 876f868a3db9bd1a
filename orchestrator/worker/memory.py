"""Memory that a rank really took, and what the plan had said."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator

from orchestrator.units import KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """Peak memory of one process so far, bytes.

    On a GPU ``allocated_bytes`` are torch's tensors and ``peak_bytes`` what torch took from the device for them; on a
    CPU both are the resident set, the interpreter and its libraries included.
    """

    allocated_bytes: int
    peak_bytes: int


def memory_peak() -> MemoryPeak:
    """The peaks of this process."""
    if get_accelerator().device_name() == "cpu":
        peak = peak_resident_bytes()
        return MemoryPeak(allocated_bytes=peak, peak_bytes=peak)
    return MemoryPeak(
        allocated_bytes=get_accelerator().max_memory_allocated(),
        peak_bytes=torch.cuda.max_memory_reserved(),
    )


def memory_report(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Measured against predicted memory, for ``result.json``; every rank calls it and gets the same."""
    peak = memory_peak()
    rank = torch.distributed.get_rank()
    own = {"rank": rank, "predicted_bytes": _predicted_bytes(plan, rank), "measured_bytes": peak.peak_bytes}
    own["allocated_bytes"] = peak.allocated_bytes
    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, own)
    worst = max(ranks, key=lambda entry: entry["measured_bytes"])
    return {"predicted_bytes": worst["predicted_bytes"], "measured_bytes": worst["measured_bytes"], "ranks": ranks}


def _predicted_bytes(plan: Mapping[str, Any], rank: int) -> int | None:
    """What the plan says of this rank, counted as ``memory_peak`` counts: without the device's context on a GPU."""
    key = "device_bytes" if get_accelerator().device_name() == "cpu" else "reserved_bytes"
    for entry in plan["memory"]["device"] if plan["memory"] else ():
        if rank in entry["ranks"]:
            return int(entry[key])
    return None


def peak_resident_bytes() -> int:
    """The largest resident set of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would report the parent's peak of before exec: the launcher's, not ours.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * KIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB
