"""From the bytes that are allocated to what the framework reserves and what a monitor shows, each with an interval.

Three numbers for every phase. *Allocated* are tensors. *Reserved* is what torch's caching allocator has taken from the device
for them: blocks are rounded, and those freed by one phase serve the next only where they are large enough. *Device* adds what
lies outside the allocator: the CUDA context, and NCCL's buffers for each group of ranks beyond the first.

The allocator gives cached blocks back before it fails. What a run *needs* is therefore the largest phase; what a monitor
*shows* is anything up to the sum over components of the most that each ever held, or the whole device. The numbers are what is
needed, the intervals end at what may be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from orchestrator.config.enums import Accelerator
from orchestrator.planning.broadcast import larger
from orchestrator.planning.parameters import Size
from orchestrator.units import MIB

GATHERED = "gathered_parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The constants that no count gives. Everything else follows from the run."""

    fragmentation: float = 0.05
    """Share by which torch's GPU allocator holds more than the blocks it needs, by rounding and fragmentation.

    Public reports range from under 2 % with expandable segments to over 10 % without. ``tests/benchmarks/memory_accuracy.py``
    fits it on published readings, without the source that it then predicts.
    """
    cpu_fragmentation: float = 0.3
    """The same for the C library's allocator: blocks it keeps after they are freed. 5 to 43 % in runs of our own."""
    communicator_bytes: int = 512 * MIB
    """NCCL's buffers for a group of ranks; 0.3 to 0.6 GB in reports from NVLink machines."""
    allocated_spread: float = 0.07
    """Half the width of the interval of allocated bytes: nine of ten published peaks lie inside."""
    reading_spread: float = 0.09
    """Half the width of the interval of reserved and device bytes, of which the same holds."""
    cpu_spread: float = 0.2
    """The same for the resident set of a process."""


OVERHEADS = Overheads()
"""Those that the planner uses."""


class Interval(NamedTuple):
    """Bytes between which a reading is expected."""

    low: int
    high: int

    def holds(self, size: float) -> bool:
        """Whether a reading lies in it."""
        return self.low <= size <= self.high


class Levels(NamedTuple):
    """The three numbers of a phase, or of a whole step, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    allocated_interval: Interval
    reserved_interval: Interval
    device_interval: Interval

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "device_bytes": self.device_bytes,
            "allocated_interval": list(self.allocated_interval),
            "reserved_interval": list(self.reserved_interval),
            "device_interval": list(self.device_interval),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSurroundings:
    """What the levels depend on beside the tensors."""

    accelerator: Accelerator
    context_bytes: int
    """CUDA context and the first communicators; on a CPU the interpreter."""
    extra_groups: Size
    """Groups of ranks beyond the first that a rank communicates in."""
    capacity_bytes: int


def extra_groups(*, tensor_parallel_size: Size, pipeline_parallel_size: Size, data_parallel_size: Size) -> Size:
    """Groups beyond the first: one for each axis in use."""
    used = (tensor_parallel_size > 1) * 1 + (pipeline_parallel_size > 1) + (data_parallel_size > 1)
    return larger(used - 1, 0)


def needed_bytes(phases: Mapping[Any, Mapping[str, Size]]) -> Size:
    """Bytes of the largest phase."""
    return larger(*(sum(components.values()) for components in phases.values()))


def cached_bytes(phases: Mapping[Any, Mapping[str, Any]]) -> Any:
    """The most that the caching allocator may hold while the device has room: the most of each component, whenever that is.

    Whole parameters that ZeRO-3 gathers are freed in another order than they are made, in many sizes: blocks for them are
    there twice.
    """
    held: dict[str, Any] = {}
    for components in phases.values():
        remember(held, components)
    return held_bytes(held)


def remember(held: dict[str, Any], components: Mapping[str, Any]) -> None:
    """Raise what the allocator holds of each component to what a phase needs."""
    for name, size in components.items():
        if size > held.get(name, 0):
            held[name] = size


def held_bytes(held: Mapping[str, Any]) -> Any:
    """All that the allocator holds: ``cached_bytes`` of the phases so far."""
    return sum(held.values()) + held.get(GATHERED, 0)


def reserved_bytes(allocated: Size, accelerator: Accelerator, overheads: Overheads = OVERHEADS) -> Size:
    """What the allocator takes from the device for ``allocated`` bytes of tensors."""
    on_cpu = accelerator is Accelerator.cpu
    taken = allocated * (1 + (overheads.cpu_fragmentation if on_cpu else overheads.fragmentation))
    return np.rint(taken).astype(np.int64) if isinstance(taken, np.ndarray) else round(taken)


def outside_bytes(surroundings: DeviceSurroundings, overheads: Overheads = OVERHEADS) -> Size:
    """What a device holds beside the allocator's blocks."""
    if surroundings.accelerator is Accelerator.cpu:
        return surroundings.context_bytes
    return surroundings.context_bytes + surroundings.extra_groups * overheads.communicator_bytes


def levels(*, needed: int, cached: int, surroundings: DeviceSurroundings, overheads: Overheads = OVERHEADS) -> Levels:
    """The three levels of a phase that needs ``needed`` bytes when the allocator may hold ``cached``."""
    on_cpu = surroundings.accelerator is Accelerator.cpu
    outside = outside_bytes(surroundings, overheads)
    reserved = reserved_bytes(needed, surroundings.accelerator, overheads)
    shown = reserved if on_cpu else reserved_bytes(cached, surroundings.accelerator, overheads)
    spread = overheads.cpu_spread if on_cpu else overheads.reading_spread
    exact, room = overheads.allocated_spread, surroundings.capacity_bytes
    return Levels(
        allocated_bytes=needed,
        reserved_bytes=reserved,
        device_bytes=reserved + outside,
        allocated_interval=Interval(round(needed * (1 - exact)), round(needed * (1 + exact))),
        reserved_interval=_reading(reserved, shown, spread, max(room - outside, reserved)),
        device_interval=_reading(reserved + outside, shown + outside, spread, max(room, reserved + outside)),
    )


def _reading(needed: int, shown: int, spread: float, room: int) -> Interval:
    """From below what is needed or shown to above what is shown; no reading exceeds the room of the device."""
    shown = min(shown, room)
    return Interval(min(needed, round(shown * (1 - spread))), max(shown, min(round(shown * (1 + spread)), room)))
