"""What was done to runs, and how they ended: one table at the end of the tests."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

from tests.multihost.job import Ending

_HEAD = ("fault", "hosts", "exit", "detected", "all stopped", "orphans", "what the user is told")
_WIDTH = 90


@dataclass
class FaultTable:
    """Rows in the order in which they were noted."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def note(self, fault: str, hosts: int, ending: Ending, told: str) -> None:
        """Add a fault. ``told`` is the line of its output that says what happened."""
        seconds = (f"{ending.detect_seconds:.1f} s", f"{ending.stopped_seconds:.1f} s")
        self.rows.append((fault, str(hosts), str(ending.code), *seconds, str(ending.orphans), told))

    def __str__(self) -> str:
        rows = [_HEAD, *((*row[:-1], textwrap.shorten(row[-1], _WIDTH)) for row in self.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def told(printed: str, *patterns: str) -> str:
    """The first line that matches the first pattern; every pattern must be somewhere in what was printed."""
    for pattern in patterns:
        assert re.search(pattern, printed), f"the user is not told {pattern!r}: {printed}"
    return next(line.strip() for line in printed.splitlines() if re.search(patterns[0], line))
