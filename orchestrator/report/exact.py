"""The table of an exact estimate: what was counted beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from orchestrator.units import format_bytes


def exact_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Of each class of equal ranks its components: closed form, counted in an engine, and their ratio."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("counted in an engine", "component", "closed form", "exact", "closed form / exact"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        name = f"stage {entry['stage']}, rank {entry['rank']}"
        for component, sizes in entry["components"].items():
            predicted, counted = sizes["closed_form_bytes"], sizes["exact_bytes"]
            ratio = f"{predicted / counted:.3f}" if counted and predicted else "-"
            table.add_row(name, component, format_bytes(predicted), format_bytes(counted), ratio)
            name = ""
    return table
