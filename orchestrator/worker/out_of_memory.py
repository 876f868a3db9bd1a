"""What a rank had, and what it asked for, when there was not enough memory."""

from __future__ import annotations

import re
from typing import Any

import psutil
import torch
from deepspeed.accelerator import get_accelerator

from orchestrator.units import GIB, KIB, MIB
from orchestrator.worker.memory import memory_peak, peak_resident_bytes

_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_ASKED = re.compile(r"(?:[Tt]ried|[Uu]nable) to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
"""As torch's allocators say it, and numpy's."""
_HOST = re.compile(r"DefaultCPUAllocator|[Cc]annot allocate memory|posix_memalign|std::bad_alloc")
_DEVICE = re.compile(r"(CUDA|HIP).*out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def memory_at_failure(problem: BaseException) -> dict[str, Any] | None:
    """The ``memory`` of a failure record, bytes; None when ``problem`` is another one.

    ``place`` is ``device`` or ``host``. ``device_allocated_bytes`` and ``device_reserved_bytes`` are torch's peaks, free and
    total what the driver says now, all null without a device. The host's are what this process can see: its own resident set
    and the machine's RAM, without the limit of a container.
    """
    place = _place(problem)
    if place is None:
        return None
    machine, own = psutil.virtual_memory(), psutil.Process().memory_info()
    return {
        "place": place,
        "requested_bytes": _requested_bytes(str(problem)),
        **_device(),
        "resident_bytes": own.rss,
        "resident_peak_bytes": peak_resident_bytes(),
        "host_total_bytes": machine.total,
        "host_available_bytes": machine.available,
    }


def _place(problem: BaseException) -> str | None:
    text = str(problem)
    if isinstance(problem, MemoryError) or _HOST.search(text):
        return "host"
    if isinstance(problem, torch.OutOfMemoryError) or _DEVICE.search(text):
        return "device"
    return None


def _requested_bytes(text: str) -> int | None:
    found = _ASKED.search(text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def _device() -> dict[str, int | None]:
    if _on_cpu():
        return dict.fromkeys(("device_allocated_bytes", "device_reserved_bytes", "device_free_bytes", "device_total_bytes"))
    peak = memory_peak()
    free, total = torch.cuda.mem_get_info()
    return {
        "device_allocated_bytes": peak.allocated_bytes,
        "device_reserved_bytes": peak.peak_bytes,
        "device_free_bytes": free,
        "device_total_bytes": total,
    }


def _on_cpu() -> bool:
    return str(get_accelerator().device_name()) == "cpu"
