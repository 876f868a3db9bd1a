"""Memory that a rank really took, and what the plan had said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator

from orchestrator.worker.memory_record import peak_resident_bytes, rank_record, report_of


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
    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, own_record(plan, torch.distributed.get_rank()))
    return report_of(ranks)


def own_record(plan: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """What this process, which is ``rank``, took of what the plan gave it."""
    peak = memory_peak()
    return rank_record(
        plan,
        rank,
        allocated_bytes=peak.allocated_bytes,
        measured_bytes=peak.peak_bytes,
        on_cpu=get_accelerator().device_name() == "cpu",
    )
