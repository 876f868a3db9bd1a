"""The tables of sweeps: of the points that were run, and of those that a preview looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.planning.plan import Plan
from orchestrator.sweep_point import PointStatus, SweepPoint
from orchestrator.units import format_bytes, format_count, format_seconds

_STYLES = {
    PointStatus.finished: "green",
    PointStatus.infeasible: "yellow",
    PointStatus.failed: "bold red",
    PointStatus.interrupted: "yellow",
    PointStatus.running: "cyan",
}


def varied(points: Sequence[Sequence[str]]) -> list[str]:
    """The options that the words of points set differently, in the order of the words."""
    values: dict[str, set[str | None]] = {}
    settings = [_settings(words) for words in points]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    for name in names:
        values[name] = {setting.get(name) for setting in settings}
    return [name for name in names if len(values[name]) > 1]


def sweep_report(
    sweep_dir: Path, points: Mapping[Path, SweepPoint], best: SweepPoint | None, direction: str
) -> list[RenderableType]:
    """One row a point, and the best of them."""
    names = varied([point.overrides for point in points.values()])
    metric = next((point.metric_name for point in points.values() if point.metric_name), "metric")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("point", *_short(names), "status", metric):
        table.add_column(column, overflow="fold")
    for point in points.values():
        settings = _settings(point.overrides)
        value = "-" if point.metric is None else f"{point.metric:.6g}"
        status = Text(point.status.value, style=_STYLES[point.status])
        words = [settings.get(name, "-") for name in names]
        table.add_row(str(point.number), *words, status, value)
    counts = {status: sum(point.status is status for point in points.values()) for status in PointStatus}
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count) or "no point was run"
    reasons = _reasons([(point.number, f"{point.status}: {point.reason}") for point in points.values() if point.reason])
    lines: list[RenderableType] = [table, *reasons, Text(f"{told}; {sweep_dir}")]
    if best is not None:
        said = " ".join(f"{name}={_settings(best.overrides).get(name, '-')}" for name in names)
        place = f"point {best.number} with {best.metric:.6g}{f': {said}' if said else ''}"
        lines.append(Text(f"best ({direction} {best.metric_name}): {place}"))
    return lines


def preview_report(points: Sequence[tuple[int, Sequence[str], Plan | None, str]]) -> list[RenderableType]:
    """One row a point: number, words, plan (None where there is no configuration), and why it cannot run."""
    names = varied([words for _, words, _, _ in points])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("point", *_short(names), "verdict", "device", "of", "host", "of", "step", "tokens/s", "of peak"):
        table.add_column(column, overflow="fold")
    for number, words, plan, _reason in points:
        settings = _settings(words)
        verdict = "invalid" if plan is None else plan.verdict
        style = "green" if plan is not None and plan.fits else "yellow"
        row = [settings.get(name, "-") for name in names]
        table.add_row(str(number), *row, Text(verdict, style=style), *_sizes(plan), *_speeds(plan))
    fitting = sum(plan is not None and plan.fits for _, _, plan, _ in points)
    reasons = _reasons([(number, reason) for number, _, _, reason in points if reason])
    return [table, *reasons, Text(f"{fitting} of {len(points)} points can run")]


def _reasons(reasons: Sequence[tuple[int, str]]) -> list[RenderableType]:
    """A line for each reason, with the points that share it."""
    numbers: dict[str, list[int]] = {}
    for number, reason in reasons:
        numbers.setdefault(reason, []).append(number)
    return [Text(f"{', '.join(map(str, named))}: {reason}") for reason, named in numbers.items()]


def _short(names: Sequence[str]) -> list[str]:
    """The last parts of the options' names where they are enough to tell them apart."""
    last = [name.rsplit(".", 1)[-1] for name in names]
    return [short if last.count(short) == 1 else name for short, name in zip(last, names, strict=True)]


def _sizes(plan: Plan | None) -> tuple[str, str, str, str]:
    if plan is None or plan.memory is None:
        return ("-", "-", "-", "-")
    device = max(plan.memory.device, key=lambda entry: entry.device_bytes / entry.capacity_bytes)
    host = max(plan.memory.host, key=lambda entry: entry.peak_bytes / entry.capacity_bytes)
    sizes = (device.device_bytes, device.capacity_bytes, host.peak_bytes, host.capacity_bytes)
    first, second, third, fourth = (format_bytes(size) for size in sizes)
    return first, second, third, fourth


def _speeds(plan: Plan | None) -> tuple[str, str, str]:
    if plan is None or plan.time is None or plan.layout is None:
        return ("-", "-", "-")
    time = plan.time
    tokens = time.tokens_per_second_per_device * plan.layout.world_size
    return format_seconds(time.step_seconds), format_count(tokens), f"{100 * time.model_flops_utilization:.1f}%"


def _settings(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {name.lstrip("+"): value for name, _, value in pairs if name != "command"}
