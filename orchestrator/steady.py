"""Which entries of ``metrics.jsonl`` stand for a steady step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FIRST_STEPS = 2
"""Steps that are left out: memory is taken for the first time, kernels are chosen, caches filled."""


def steady_entries(entries: Iterable[Mapping[str, Any]], log_every: int) -> list[Mapping[str, Any]]:
    """The training entries of an attempt but its first; an entry stands for ``log_every`` steps. Skipped steps are left out."""
    trained = [entry for entry in entries if entry["kind"] == "train"]
    if not trained:
        return []
    first = trained[0]["step"] - log_every + FIRST_STEPS
    return [entry for entry in trained if entry["step"] - log_every >= first and not entry.get("skipped")]
