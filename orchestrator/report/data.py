"""The table of a run's data: what there is of each source, and how much of it the run reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.units import format_count

_COLUMNS = ("data", "tokens", "documents", "sequences", "held out", "read", "epochs", "padding", "loss on")


def data_report(data: Mapping[str, Any] | None) -> list[RenderableType]:
    """Of ``DataCount.to_dict``; nothing where no data were counted."""
    if data is None:
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for name, source in data["sources"].items():
        table.add_row(name, *_sizes(source), f"{source['share']:.1%}", _times(source["epochs"]), *_shares(source))
    for name, source in data["evaluation"].items():
        table.add_row(f"evaluation.{name}", *_sizes(source), "-", "-", *_shares(source))
    if not data["sources"]:
        return [table]
    sequences, tokens = format_count(data["trained_sequences"]), format_count(data["trained_tokens"])
    return [table, Text(f"{data['steps']} steps read {sequences} sequences, {tokens} tokens: {_epochs(data['sources'])}")]


def _epochs(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """``0.4 epochs``, or ``3.2 epochs of books, 0.1 epochs of code``."""
    if len(sources) == 1:
        return f"{_times(next(iter(sources.values()))['epochs'])} epochs"
    return ", ".join(f"{_times(source['epochs'])} epochs of {name}" for name, source in sources.items())


def _times(number: float) -> str:
    return f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def _sizes(source: Mapping[str, Any]) -> list[str]:
    about = "about " if source["is_estimated"] else ""
    return [
        format_count(source["tokens"]),
        format_count(source["documents"]),
        f"{about}{format_count(source['sequences'])}",
        f"{about}{format_count(source['held_out_sequences'])}",
    ]


def _shares(source: Mapping[str, Any]) -> list[str]:
    return [f"{source['padding_share']:.1%}", f"{source['loss_share']:.1%} of the tokens"]
