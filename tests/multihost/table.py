"""What was done to runs, and how they ended: one table at the end of the tests."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field

from tests.multihost.job import Ending

_HEAD = ("fault", "hosts", "exit", "detected", "all stopped", "orphans", "what the user is told")
_WIDTH = 80


@dataclass
class FaultTable:
    """Rows in the order in which they were noted."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def judge(self, fault: str, hosts: int, ending: Ending, *, code: int, told: tuple[str, ...]) -> None:
        """Note a fault, and hold its end against what is promised.

        The user must be told all of ``told``, patterns; the line that matches the first of them goes into the table.
        """
        lines = [line.strip() for line in ending.printed.splitlines()]
        line = next((line for line in lines if told and re.search(told[0], line)), "")
        seconds = (f"{ending.detect_seconds:.1f} s", f"{ending.stopped_seconds:.1f} s")
        self.rows.append((fault, str(hosts), str(ending.code), *seconds, str(len(ending.orphans)), line))
        assert not ending.orphans
        assert ending.code == code, ending.printed
        untold = [pattern for pattern in told if not re.search(pattern, ending.printed)]
        assert not untold, ending.printed

    def __str__(self) -> str:
        rows = [_HEAD, *((*row[:-1], textwrap.shorten(row[-1], _WIDTH)) for row in self.rows)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)
