"""Rows of a file of published memory readings (the columns of ``tests/data/memory_published.csv``), read leniently.

A field that is missing, empty or not a number is ``None``; notes are ``key=value`` pairs in any order, and unknown keys are
kept. Encodings, separators and the spelling of column names may differ. ``read_rows`` alone raises for what a file may hold.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

NUMERIC_KINDS = ("peak_allocated", "peak_reserved", "device_used", "host_used", "steady_allocated", "peak_unspecified")
DECISION_KINDS = ("fits", "oom")
UNITS: Mapping[str, float] = {
    **dict.fromkeys(("", "s", "sec", "seconds", "tflop/s", "tflops", "tokens/s", "gib"), 1),
    "ms": 1e-3,
    "%": 1e-2,
    "m": 1e6,
    "b": 1e9,
    "t": 1e12,
}
"""What may stand behind a number, and what it counts for; millions, billions and trillions are of parameters."""
USABLE_GIB: Mapping[str, float] = {
    "a100-80": 79.14,
    "a100-40": 39.4,
    "h100-80": 79.1,
    "v100-32": 31.74,
    "v100-16": 15.77,
    "h200": 139.8,
    "b200": 178.0,
    "gh200": 94.5,
    "a6000": 47.5,
    "a10g": 22.0,
    "4090": 23.6,
    "titan rtx": 23.6,
    "a100": 79.14,
    "h100": 79.1,
}
"""What torch reports of a device, GiB, by a part of its label; the first that is found counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One reading."""

    fields: Mapping[str, str]
    notes: Mapping[str, str]

    @property
    def id(self) -> str:
        """Its name."""
        return self.text("id") or "?"

    @property
    def group(self) -> str:
        """The source it counts for: what stands before the first dash of the id."""
        return self.id.split("-")[0]

    @property
    def kind(self) -> str:
        """What was read."""
        return self.text("kind")

    @property
    def is_scored(self) -> bool:
        """Whether it counts; a file without the column scores all."""
        return (self.text("row_status") or "scored") == "scored"

    def text(self, name: str) -> str:
        """A field in lower case, empty if it is missing (the id as it is written)."""
        value = (self.fields.get(name) or "").strip()
        return value if name == "id" else value.lower()

    def number(self, name: str) -> float | None:
        """A numeric field."""
        return parse_number(self.fields.get(name) or "")

    def whole(self, name: str, default: int = 0) -> int:
        """A field that is a count, ``default`` where it is missing."""
        value = self.number(name)
        return default if value is None else int(value)

    def size(self, name: str) -> int:
        """A field that is a size: at least 1, or 0 where it is missing or makes no sense."""
        return max(0, self.whole(name))

    def note(self, name: str) -> str:
        """A note in lower case, empty if it is missing."""
        return self.notes.get(name, "").lower()

    def flag(self, name: str) -> bool | None:
        """A note that says yes or no."""
        return {"yes": True, "no": False, "true": True, "false": False}.get(self.note(name).split(" ")[0])

    @property
    def measured_gib(self) -> float | None:
        """The reading."""
        return self.number("measured_gib")

    @property
    def range_gib(self) -> tuple[float, float] | None:
        """Where the reading lies when its unit is in doubt."""
        ends = [parse_number(part) for part in self.note("gib_range").split("..")]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            return None
        return ends[0], ends[1]

    @property
    def capacity_gib(self) -> float | None:
        """Memory of the device, or ``None`` for one that is not known."""
        label = self.text("gpu")
        for part, usable in USABLE_GIB.items():
            if part in label.replace(" (", "-").replace(" ", "-") or part in label:
                return usable
        size = re.search(r"(\d+)\s*g", label)
        return None if size is None else 0.988 * int(size.group(1))


@lru_cache(maxsize=10_000)
def parse_number(text: str) -> float | None:
    """A finite number as people write it, with one of ``UNITS`` or none, or ``None``.

    A comma before three digits separates thousands, any other the decimals.
    """
    found = re.fullmatch(r"([-+]?[\d.,]+(?:e[-+]?\d+)?)\s*([a-z%/]*)", text.strip().lower())
    if found is None or found.group(2) not in UNITS:
        return None
    digits = re.sub(r",(?=\d{3}(?!\d))", "", found.group(1)).replace(",", ".")
    try:
        value = float(digits) * UNITS[found.group(2)]
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_rows(path: Path) -> list[Row]:
    """Every row of the file. Raises SystemExit with the reason if it cannot be read."""
    try:
        text = _decoded(path.read_bytes())
        head = text.partition("\n")[0]
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
        names = [name.strip().lower() for name in next(reader, [])]
        entries = [dict(zip(names, cells, strict=False)) for cells in reader if cells]
    except OSError as problem:
        raise SystemExit(f"{path}: {problem.strerror}") from None
    except csv.Error as problem:
        raise SystemExit(f"{path}: {problem}") from None
    return [Row(fields=entry, notes=_notes(entry.get("notes", ""))) for entry in entries]


def _decoded(content: bytes) -> str:
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _notes(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
