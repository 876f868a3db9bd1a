"""How a run is shown while it goes on: live, as lines, or hardly at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from orchestrator.config.enums import View
from orchestrator.report.live import live_view

Echo = Callable[[str], None]

_ROUTINE = re.compile(r"step \d+|data: |model |resumed from |building |W&B (?:online|offline): \S+$")
"""How lines begin that say that all is well."""


def view_of(asked: View, console: Console, *, only_if_asked: bool) -> View:
    """The view that ``console`` gets: a live one needs a terminal that can move its cursor.

    ``only_if_asked``: none is wanted by default, since standard output is for a program.
    """
    is_able = console.file.isatty() and not console.is_dumb_terminal
    if asked in (View.auto, View.live):
        return View.live if is_able and (asked is View.live or not only_if_asked) else View.lines
    return asked


def is_unusual(line: str) -> bool:
    """Whether a line that a run says is anything but its usual progress."""
    return _ROUTINE.match(line) is None


@contextmanager
def followed(view: View, console: Console, attempt: Path, *, unusual: Callable[[str], bool] = is_unusual) -> Iterator[Echo]:
    """Show an attempt until the end of the block; gives what takes its lines. Those that are ``unusual`` break a silence."""

    def show(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show_unusual(line: str) -> None:
        if unusual(line):
            show(line)

    if view is View.live:
        with live_view(attempt, console) as echo:
            yield echo
    else:
        yield show_unusual if view is View.quiet else show
