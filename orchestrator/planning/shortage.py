"""A rank that ran out of memory: what the plan had said of it, beside what it had, and what a new plan may count on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrator.config.enums import Accelerator

COUNTED = (
    "parameters",
    "gathered_parameters",
    "gradients",
    "optimizer_states",
    "reduce_buckets",
    "allgather_buffers",
    "swap_buffers",
)
"""Components that a worker counts in its engine. Activations live in autograd's graph, and are among the rest."""
REST = "activations and all else"
_MUCH = 0.5
"""Share of the capacity from which a run that was killed is likely to have used it up itself."""


class Place(StrEnum):
    """Whose memory was used up."""

    device = "device"
    host = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Predicted beside measured, bytes; None where there is no such figure."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Predicted and measured memory of a rank when there was not enough, bytes.

    ``components`` are those of its device, or of its process on a CPU; of a host with devices they are the sum over its ranks,
    of which nothing is measured. Predicted at the peak, in phase ``phase``; measured at the failure. ``levels`` are sums.
    """

    place: Place
    phase: str | None
    requested_bytes: int | None
    free_bytes: int | None
    capacity_bytes: int
    """What there really is; what the plan counted on where nothing was measured."""
    planned_capacity_bytes: int
    predicted_bytes: int
    components: tuple[Row, ...]
    levels: tuple[Row, ...]
    usable_bytes: int
    """What a plan may count on: the capacity less what was in use, or asked for, beyond this plan's prediction."""

    @property
    def is_explained(self) -> bool:
        """Whether a plan that counts on ``usable_bytes`` would have been refused."""
        return self.predicted_bytes > self.usable_bytes

    def to_dict(self) -> dict[str, Any]:
        """The object of ``output=json``."""
        return asdict(self)


def shortage_of(
    plan: Mapping[str, Any],
    *,
    rank: int,
    host_index: int,
    accelerator: Accelerator,
    place: Place,
    memory: Mapping[str, Any] | None,
) -> Shortage:
    """Hold what ``rank`` had against ``plan`` (``Plan.to_dict`` with a memory estimate).

    ``host_index`` is the place of its host among the plan's. ``memory`` is that of its failure record; None when the rank was
    killed and could not leave one. On a CPU the ranks share their host's RAM, which is the only ``place``.
    """
    device = next(entry for entry in plan["memory"]["device"] if rank in entry["ranks"])
    host = plan["memory"]["host"][host_index]
    if place is Place.device and accelerator is not Accelerator.cpu:
        return _of_device(device, memory)
    return _of_host(device, host, memory, on_cpu=accelerator is Accelerator.cpu)


def _of_device(entry: Mapping[str, Any], memory: Mapping[str, Any] | None) -> Shortage:
    measured: Mapping[str, Any] = memory or {}
    total, free = measured.get("device_total_bytes"), measured.get("device_free_bytes")
    in_use = None if total is None or free is None else total - free
    return Shortage(
        place=Place.device,
        phase=entry["phase"],
        requested_bytes=measured.get("requested_bytes"),
        free_bytes=free,
        capacity_bytes=total or entry["capacity_bytes"],
        planned_capacity_bytes=entry["capacity_bytes"],
        predicted_bytes=entry["device_bytes"],
        components=tuple(
            _rows(entry["components"], entry["allocated_bytes"], measured, held=measured.get("device_allocated_bytes"))
        ),
        levels=(
            Row(
                name="allocated",
                predicted_bytes=entry["allocated_bytes"],
                measured_bytes=measured.get("device_allocated_peak_bytes"),
            ),
            Row(
                name="reserved",
                predicted_bytes=entry["reserved_bytes"],
                measured_bytes=measured.get("device_reserved_peak_bytes"),
            ),
            Row(name="device", predicted_bytes=entry["device_bytes"], measured_bytes=in_use),
        ),
        usable_bytes=_usable(total or entry["capacity_bytes"], entry["device_bytes"], in_use, measured),
    )


def _of_host(device: Mapping[str, Any], host: Mapping[str, Any], memory: Mapping[str, Any] | None, *, on_cpu: bool) -> Shortage:
    measured: Mapping[str, Any] = memory or {}
    total, free = measured.get("host_total_bytes"), measured.get("host_available_bytes")
    in_use = None if total is None or free is None else total - free
    peaks = {"start": host["start_bytes"], "step": host["step_bytes"], "save": host["save_bytes"]}
    phase = max(peaks, key=lambda name: peaks[name])
    if on_cpu:
        process = device["device_bytes"]
        components = tuple(_rows(device["components"], process, measured, held=measured.get("resident_bytes")))
    else:
        process = None
        components = tuple(
            Row(name=name, predicted_bytes=size, measured_bytes=None) for name, size in host["components"].items()
        )
    return Shortage(
        place=Place.host,
        phase=device["phase"] if on_cpu else phase,
        requested_bytes=measured.get("requested_bytes"),
        free_bytes=free,
        capacity_bytes=total or host["capacity_bytes"],
        planned_capacity_bytes=host["capacity_bytes"],
        predicted_bytes=peaks[phase],
        components=components,
        levels=(
            Row(name="process", predicted_bytes=process, measured_bytes=measured.get("resident_peak_bytes")),
            Row(name="host", predicted_bytes=peaks[phase], measured_bytes=in_use),
        ),
        usable_bytes=_usable(total or host["capacity_bytes"], peaks[phase], in_use, measured),
    )


def _rows(predicted: Mapping[str, int], sum_bytes: int, measured: Mapping[str, Any], *, held: int | None) -> Iterator[Row]:
    """What a worker can count, one by one, and the rest of ``sum_bytes`` and of what it ``held``."""
    counted: Mapping[str, int] = measured.get("components") or {}
    names = [name for name in COUNTED if name in predicted or name in counted]
    for name in names:
        size = counted.get(name, 0) if counted else None
        yield Row(name=name, predicted_bytes=predicted.get(name, 0), measured_bytes=size)
    others = None if held is None or not counted else max(held - sum(counted.get(name, 0) for name in names), 0)
    yield Row(name=REST, predicted_bytes=sum_bytes - sum(predicted.get(name, 0) for name in names), measured_bytes=others)


def _usable(capacity: int, predicted: int, in_use: int | None, measured: Mapping[str, Any]) -> int:
    """Whatever was in use beyond the prediction (a larger need, another process) will be there again."""
    if in_use is None:
        # killed without a word: if much was predicted, it was too much; if little, something else took the memory
        return min(capacity, predicted - 1) if predicted > capacity * _MUCH else capacity
    unforeseen = max(in_use + (measured.get("requested_bytes") or 0) - predicted, 0)
    return max(capacity - unforeseen, 1)
