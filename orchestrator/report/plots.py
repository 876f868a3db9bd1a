"""The metric of runs against each option that varies between them, as pictures. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.enums import Direction
from orchestrator.report.results import option_text
from orchestrator.results.options import MISSING, value_of
from orchestrator.results.row import Row
from orchestrator.results.table import ResultsTable

_DECADE = 10.0
_FORMATS = ("svg", "png")
_BLUE, _ORANGE, _GRAY = "#2f6fb0", "#d9651b", "#8a8a8a"


def plot_results(table: ResultsTable, folder: Path) -> list[Path]:
    """Write a picture for each option, and objective that several finished runs have, into ``folder``, as SVG and PNG.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: ``folder`` cannot be written to.
    """
    import matplotlib  # noqa: F401 - the first to say that it is missing

    finished = Counter(row.metric_name for row in table.rows if row.is_finished and row.metric is not None)
    metrics = sorted(name for name, count in finished.items() if name is not None and count > 1)
    written: list[Path] = []
    for metric in metrics:
        rows = [row for row in table.rows if row.metric_name == metric and row.metric is not None]
        for option in table.options:
            known = [row for row in rows if value_of(row, option) is not MISSING]
            if len({option_text(value_of(row, option)) for row in known}) > 1:
                written += _plot(known, option, metric, table.best, folder, prefix=f"{metric}_" if len(metrics) > 1 else "")
    return written


def _plot(rows: Sequence[Row], option: str, metric: str, best: frozenset[Path], folder: Path, *, prefix: str) -> list[Path]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    values = [value_of(row, option) for row in rows]
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    # a Figure of its own, without pyplot, needs no display and leaves nothing behind
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    places = _numeric_axis(axes, values) if is_numeric else _categories(axes, values)
    _draw(axes, rows, places, best)
    axes.set_xlabel(option)
    axes.set_ylabel(metric)
    if _spans_decades([row.metric for row in rows if row.metric is not None]):
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    paths = [folder / f"{prefix}{_file_name(option)}.{kind}" for kind in _FORMATS]
    with rc_context({"svg.hashsalt": "results", "svg.fonttype": "none"}):
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _draw(axes: Any, rows: Sequence[Row], places: Sequence[float], best: frozenset[Path]) -> None:
    """Every run as a point, and a line through the best of each value."""
    sign = -1 if rows[0].direction is Direction.maximize else 1
    leading: dict[float, float] = {}
    for row, place in zip(rows, places, strict=True):
        if row.metric is not None and row.is_finished:
            leading[place] = min((leading.get(place, row.metric), row.metric), key=lambda metric: sign * metric)
    axes.plot(sorted(leading), [leading[place] for place in sorted(leading)], color=_BLUE, linewidth=1, alpha=0.6, zorder=1)
    kinds = (
        ("finished", [row.is_finished and row.path not in best for row in rows], {"color": _BLUE, "s": 28}),
        ("not finished", [not row.is_finished for row in rows], {"edgecolors": _GRAY, "facecolors": "none", "s": 28}),
        ("best", [row.path in best for row in rows], {"color": _ORANGE, "marker": "*", "s": 140}),
    )
    for label, chosen, style in kinds:
        if any(chosen):
            points = [(place, row.metric) for row, place, wanted in zip(rows, places, chosen, strict=True) if wanted]
            axes.scatter(*zip(*points, strict=True), label=label, zorder=2, **style)


def _numeric_axis(axes: Any, values: Sequence[float]) -> list[float]:
    """Logarithmic where the values span a decade, with a tick at each where they are few."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if _spans_decades(values):
        axes.set_xscale("log")
    distinct = sorted(set(values))
    if len(distinct) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(distinct))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
    return [float(value) for value in values]


def _categories(axes: Any, values: Sequence[Any]) -> list[float]:
    """A place for each value, in the order in which the rows have them."""
    names = list(dict.fromkeys(map(option_text, values)))
    axes.set_xticks(range(len(names)), names, rotation=30 if max(map(len, names)) > 12 else 0)
    return [float(names.index(option_text(value))) for value in values]


def _spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows more of ``values``."""
    return min(values) > 0 and math.isfinite(max(values)) and max(values) / min(values) >= _DECADE


def _file_name(option: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in option)
