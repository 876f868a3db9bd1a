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
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.planning.broadcast import larger, smaller
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
    allocated_spread: float = 0.05
    """Half the width of the interval of allocated bytes: the median error of published peaks is below it."""
    reading_spread: float = 0.09
    """Half the width of the interval of reserved and device bytes."""
    cpu_spread: float = 0.2
    """The same for the resident set of a process."""


OVERHEADS = Overheads()
"""Those that the planner uses."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes between which a reading is expected."""

    low: int
    high: int

    def __contains__(self, size: float) -> bool:
        return self.low <= size <= self.high

    @property
    def relative_width(self) -> float:
        """Width as a share of the middle."""
        return 2 * (self.high - self.low) / (self.high + self.low) if self.high else 0.0

    def to_list(self) -> list[int]:
        """For JSON."""
        return [self.low, self.high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
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
            "allocated_interval": self.allocated_interval.to_list(),
            "reserved_interval": self.reserved_interval.to_list(),
            "device_interval": self.device_interval.to_list(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSurroundings:
    """What the levels depend on beside the tensors."""

    accelerator: Accelerator
    context_bytes: int
    """CUDA context and the first communicators; on a CPU the interpreter."""
    extra_groups: int
    """Groups of ranks beyond the first that a rank communicates in."""
    capacity_bytes: int


def extra_groups(*, tensor_parallel_size: int, pipeline_parallel_size: int, data_parallel_size: int) -> int:
    """Groups beyond the first: one for each axis in use."""
    return max(0, sum(size > 1 for size in (tensor_parallel_size, pipeline_parallel_size, data_parallel_size)) - 1)


def needed_bytes(phases: Mapping[Any, Mapping[str, Size]]) -> Size:
    """Bytes of the largest phase."""
    totals = [sum(components.values()) for components in phases.values()]
    return larger(*totals)


def cached_bytes(phases: Mapping[Any, Mapping[str, Size]]) -> Size:
    """The most that the caching allocator may hold while the device has room: the most of each component, whenever that is.

    Whole parameters that ZeRO-3 gathers are freed in another order than they are made, in many sizes: blocks for them are
    there twice.
    """
    names = {name: None for components in phases.values() for name in components}
    largest = {name: larger(*(components.get(name, 0) for components in phases.values())) for name in names}
    return sum(largest.values()) + largest.get(GATHERED, 0)


def levels(
    *, needed: int, cached: int, surroundings: DeviceSurroundings, overheads: Overheads = OVERHEADS, spread: float | None = None
) -> Levels:
    """The three levels of a phase that needs ``needed`` bytes when the allocator may hold ``cached``."""
    on_cpu = surroundings.accelerator is Accelerator.cpu
    share = 1 + (overheads.cpu_fragmentation if on_cpu else overheads.fragmentation)
    width = spread if spread is not None else overheads.cpu_spread if on_cpu else overheads.reading_spread
    outside = surroundings.context_bytes
    if not on_cpu:
        outside += surroundings.extra_groups * overheads.communicator_bytes
    reserved = round(needed * share)
    shown = round((needed if on_cpu else cached) * share)
    return Levels(
        allocated_bytes=needed,
        reserved_bytes=reserved,
        device_bytes=reserved + outside,
        allocated_interval=_around(needed, needed, overheads.allocated_spread, None),
        reserved_interval=_around(reserved, shown, width, larger(surroundings.capacity_bytes - outside, reserved)),
        device_interval=_around(
            reserved + outside, shown + outside, width, larger(surroundings.capacity_bytes, reserved + outside)
        ),
    )


def _around(needed: int, shown: int, spread: float, room: int | None) -> Interval:
    """From below what is needed or shown to above what is shown; no reading exceeds the room of the device."""
    shown = shown if room is None else smaller(shown, room)
    high = round(shown * (1 + spread))
    return Interval(min(needed, round(shown * (1 - spread))), high if room is None else max(shown, min(high, room)))
