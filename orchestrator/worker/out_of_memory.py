"""What a rank had, and what it asked for, when there was not enough memory."""

from __future__ import annotations

import re
import sys
from typing import Any

import psutil
import torch
from deepspeed.accelerator import get_accelerator

from orchestrator.units import GIB, KIB, MIB
from orchestrator.worker.exact_count import EngineBytes
from orchestrator.worker.memory import memory_peak
from orchestrator.worker.memory_record import peak_resident_bytes

_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_ASKED = re.compile(r"(?:[Tt]ried|[Uu]nable) to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
"""As torch's allocators say it, and numpy's."""
_HOST = re.compile(r"DefaultCPUAllocator|[Cc]annot allocate memory|posix_memalign|std::bad_alloc")
_DEVICE = re.compile(r"(CUDA|HIP|Cuda failure).*out of memory|CUBLAS_STATUS_ALLOC_FAILED")
"""``Cuda failure`` is how NCCL says it, whose buffers are not torch's."""


class MemoryWitness:
    """Says what the process had when it failed for want of memory. ``engine`` is set while there is one."""

    def __init__(self) -> None:
        self.engine: Any = None

    def at_failure(self, problem: BaseException) -> dict[str, Any] | None:
        """The ``memory`` of a failure record, bytes; None when ``problem`` is another one.

        ``place`` is ``device`` or ``host``. ``components`` are what the engine holds there now (None: there is none yet). Of
        the device the allocator's figures now and at their peak, and what the driver says, all null without a device. The
        host's are what this process can see: its resident set and the machine's RAM, without the limit of a container.
        """
        place = _place(problem)
        if place is None:
            return None
        machine = psutil.virtual_memory()
        return {
            "place": place,
            "requested_bytes": _requested_bytes(str(problem)),
            "components": self._components(place),
            **_device(),
            "resident_bytes": psutil.Process().memory_info().rss,
            "resident_peak_bytes": peak_resident_bytes(),
            "host_total_bytes": machine.total,
            "host_available_bytes": machine.available,
        }

    def _components(self, place: str) -> dict[str, int] | None:
        if self.engine is None:
            return None
        kind = "cpu" if place == "host" or _on_cpu() else "cuda"
        try:
            return EngineBytes(self.engine, baseline=(), kind=kind).count()
        except Exception as problem:  # the failure itself must be reported, whatever state it left the engine in
            print(f"what the engine holds cannot be counted: {problem}", file=sys.stderr)
            return None


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


_DEVICE_FIGURES = (
    "device_allocated_bytes",
    "device_allocated_peak_bytes",
    "device_reserved_bytes",
    "device_reserved_peak_bytes",
    "device_free_bytes",
    "device_total_bytes",
)


def _device() -> dict[str, int | None]:
    if _on_cpu():
        return dict.fromkeys(_DEVICE_FIGURES)
    peak = memory_peak()
    free, total = torch.cuda.mem_get_info()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    figures = (allocated, peak.allocated_bytes, reserved, peak.peak_bytes, free, total)
    return dict(zip(_DEVICE_FIGURES, figures, strict=True))


def _on_cpu() -> bool:
    return str(get_accelerator().device_name()) == "cpu"
