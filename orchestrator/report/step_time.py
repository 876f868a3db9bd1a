"""The predicted time of a step, as a table of its components."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.planning.cost.step_time import StepTime
from orchestrator.units import format_duration

_LEAST_SHARE = 0.001
"""Components below this share of the step are in the JSON alone."""


def time_report(time: StepTime | None, unknown: str | None) -> list[RenderableType]:
    """The step in one line and its components, the longest first; why there is none where it is not known."""
    if time is None:
        return [] if unknown is None else [Text(f"time of a step: unknown; {unknown}")]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("time of one step", "seconds", "exposed", "share", "why"):
        table.add_column(column, overflow="fold")
    for name, component in sorted(time.components.items(), key=lambda item: -item[1].exposed_seconds):
        if component.seconds < _LEAST_SHARE * time.step_seconds:
            continue
        share = component.exposed_seconds / time.step_seconds
        table.add_row(
            name.replace("_", " "),
            format_duration(component.seconds),
            format_duration(component.exposed_seconds),
            f"{share:.1%}",
            component.reason,
        )
    return [table, Text(time_line(time))]


def time_line(time: StepTime) -> str:
    """The figures of a step in one line."""
    per_device = f"{time.tokens_per_second_per_device:,.0f} tokens/s per device"
    shares = f"{time.model_flops_utilization:.1%} of the peak (MFU), {time.bubble_fraction:.1%} pipeline bubble"
    return f"predicted: {format_duration(time.step_seconds)} a step, {per_device}, {shares}"
