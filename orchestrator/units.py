"""Sizes of things: bytes and their prefixes, dtypes, and how they are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2})
"""Bytes of one element of each dtype the orchestrator trains in."""


def format_bytes(size: float) -> str:
    """``size`` bytes with a binary prefix: ``"17.50 GiB"``, ``"512 B"``, ``"-1.20 MiB"``."""
    magnitude = abs(size)
    for unit, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if magnitude >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size:.0f} B"


def format_count(number: float) -> str:
    """A count with a decimal prefix, as model sizes are written: ``"6.74 B"``, ``"124.4 M"``, ``"42"``."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if abs(number) >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number:.0f}"


def format_seconds(seconds: float) -> str:
    """A duration: ``"3.2 s"``, ``"4 min 05 s"``, ``"2 h 07 min"``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_duration(seconds: float) -> str:
    """A step or a part of it: ``"3.21 s"``, ``"412 ms"``, ``"0.41 ms"``; from a minute on ``"1 min 05 s"``."""
    if seconds >= 60:
        return format_seconds(seconds)
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2f} ms"
