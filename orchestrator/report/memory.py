"""Predicted against measured memory, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.planning.fixes import Fix
from orchestrator.planning.shortage import Place, Row, Shortage
from orchestrator.units import format_bytes

_SUSPECTS = {
    Place.device: "another process on the device, or fragments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
    Place.host: "other processes on the host, or the limit of a container or job",
}
_NOTABLE = 0.02
"""A capacity that differs by less from what was planned with is the same."""


def shortage_report(shortage: Shortage, fixes: Sequence[Fix], *, rank: int, host: str) -> list[RenderableType]:
    """Where memory ran out, both figures of every part, and the changes that would have fitted, each to be pasted."""
    report: list[RenderableType] = [Text(_headline(shortage, rank, host), style="bold"), _table(shortage)]
    report += [Text(remark) for remark in _remarks(shortage)]
    if not shortage.is_explained:
        return report
    if not fixes:
        return [*report, Text("no single change, nor a combination that was tried, would have fitted", style="bold")]
    report.append(Text("what would have fitted, the cheapest in speed first:", style="bold"))
    return report + [Text(f"    {' '.join(fix.overrides)}    ({fix.description})") for fix in fixes]


def _headline(shortage: Shortage, rank: int, host: str) -> str:
    where = f"the device of rank {rank} on {host}" if shortage.place is Place.device else f"the RAM of {host} (rank {rank})"
    if shortage.free_bytes is None:
        return f"out of memory: {where}"
    free = f"{format_bytes(shortage.free_bytes)} of {format_bytes(shortage.capacity_bytes)} were free"
    asked = "" if shortage.requested_bytes is None else f"{format_bytes(shortage.requested_bytes)} were asked for, "
    return f"out of memory: {where}: {asked}{free}"


def _table(shortage: Shortage) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("memory", no_wrap=True)
    table.add_column(f"predicted ({shortage.phase} phase)", justify="right")
    table.add_column("measured", justify="right")
    for row in shortage.components:
        table.add_row(row.name, *_sizes(row))
    table.add_section()
    for row in shortage.levels:
        table.add_row(row.name, *_sizes(row))
    return table


def _sizes(row: Row) -> list[str]:
    return ["-" if size is None else format_bytes(size) for size in (row.predicted_bytes, row.measured_bytes)]


def _remarks(shortage: Shortage) -> list[str]:
    remarks = []
    real, planned = shortage.capacity_bytes, shortage.planned_capacity_bytes
    if real < planned * (1 - _NOTABLE):
        remarks.append(f"the plan counted on {format_bytes(planned)}, and there are {format_bytes(real)}")
    if shortage.free_bytes is None:
        remarks.append("the process was killed before it could say what it had; dmesg on the host names what the kernel killed")
    unforeseen = real - shortage.usable_bytes
    if not shortage.is_explained:
        remarks.append(f"by the plan there was room: {_SUSPECTS[shortage.place]}")
    elif shortage.free_bytes is not None and unforeseen > 0:
        more = f"{format_bytes(unforeseen)} more than predicted were in use or asked for"
        remarks.append(f"{more}: a larger need, or {_SUSPECTS[shortage.place]}")
    return remarks
