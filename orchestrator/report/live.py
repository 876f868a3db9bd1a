"""The live view of a run: lines scroll by, and below them stands where the run is, drawn again about twice a second.

A thread of its own reads the run's files and writes to the terminal. Whoever has a line to show leaves it in a queue: a
terminal that stands still, or is closed, keeps nobody waiting. The cursor is never hidden, so there is nothing to restore even
after SIGKILL.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.control import State
from orchestrator.report.run_state import PHASES
from orchestrator.results.measures import HELD_OUT_LOSS, number
from orchestrator.results.watch import RunWatch, Sight
from orchestrator.units import format_bytes, format_count, format_duration, format_seconds

_DRAW_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
"""For a terminal that takes nothing any more."""
_BAR_WIDTH = 60

Facts = Iterator[str | None]


class SteadyConsole(Console):
    """A console that leaves the cursor as it is."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
        """Nothing."""
        return False

    def fit(self) -> None:
        """Take the size of the window that it writes to, which may have changed."""
        columns, rows = os.get_terminal_size(self.file.fileno())
        self.size = ConsoleDimensions(columns or 80, rows or 25)


@contextmanager
def live_view(attempt: Path, console: Console) -> Iterator[Callable[[str], None]]:
    """Show an attempt on the terminal of ``console`` until the end of the block; gives what shows a line above the view."""
    view = _LiveView(attempt, SteadyConsole(file=console.file, highlight=False, markup=False))
    try:
        yield view.lines.put
    finally:
        view.close()


class _LiveView:
    def __init__(self, attempt: Path, console: SteadyConsole) -> None:
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._attempt = attempt
        self._console = console
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show what is left and take the view away."""
        self.lines.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            # a disk or terminal that does not answer; what comes now must not be drawn over when it does
            self._console.file = io.StringIO()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            # where the terminal has gone nothing can be said; the lines are in the log
            try:
                self._show()
            except Exception as problem:  # whatever it is, the run and its lines go on
                self._console.print(f"the live view has ended: {type(problem).__name__}: {problem}")
                for line in iter(self.lines.get, None):
                    self._console.print(line, soft_wrap=True)

    def _show(self) -> None:
        watch = RunWatch(self._attempt)
        sight, looked = watch.look(), time.monotonic()
        with Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while True:
                if time.monotonic() - looked > _LOOK_SECONDS:
                    sight, looked = watch.look(), time.monotonic()
                self._console.fit()
                live.update(panel(sight, self._console.width), refresh=True)
                if not self._pass_on(live, until=time.monotonic() + _DRAW_SECONDS):
                    return

    def _pass_on(self, live: Live, *, until: float) -> bool:
        """Show the lines that come until then; False when there will be no more."""
        while (left := until - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                return False
            live.console.print(line, soft_wrap=True)
        return True


def panel(sight: Sight, width: int) -> RenderableType:
    """Where a run is, no wider than ``width``; rows that are too long go on below."""
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, facts in _rows(sight):
        grid.add_row(name, ", ".join(facts))
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(sight.max_steps, 1), completed=sight.step, width=min(width, _BAR_WIDTH)))
    return Group(_heading(sight), bar, grid)


def _heading(sight: Sight) -> Text:
    doing = "starting" if sight.phase is None else PHASES[sight.phase]
    if sight.state in (State.saving, State.stopping):
        doing = f"stopping, {doing}"
    return Text.assemble((sight.name, "bold"), f": {doing}", no_wrap=True, overflow="ellipsis")


def _rows(sight: Sight) -> Iterator[tuple[str, list[str]]]:
    """What is known, by subject, in the order of a reader's questions."""
    rows = (
        ("step", _progress(sight)),
        ("loss", _losses(sight)),
        ("speed", _speed(sight)),
        ("memory", _memory(sight)),
        ("bubble", _bubble(sight)),
        ("hosts", _hosts(sight)),
    )
    for name, found in rows:
        if facts := [fact for fact in found if fact is not None]:
            yield name, facts


def _progress(sight: Sight) -> Facts:
    yield f"{sight.step} of {sight.max_steps}"
    yield _fact(sight.elapsed_seconds, lambda seconds: f"{format_seconds(seconds)} elapsed")
    yield _fact(sight.remaining_seconds, lambda seconds: f"{format_seconds(seconds)} left")


def _losses(sight: Sight) -> Facts:
    yield _fact(sight.trained.get("loss"), "{:.4f}".format)
    yield _fact(sight.evaluated.get(HELD_OUT_LOSS), lambda loss: f"held out {loss:.4f} (step {sight.evaluated.get('step')})")
    yield _fact(sight.trained.get("lr"), "lr {:.1e}".format)
    yield _fact(sight.trained.get("grad_norm"), "grad norm {:.2f}".format)


def _speed(sight: Sight) -> Facts:
    yield _fact(sight.trained.get("tokens_per_second"), lambda rate: f"{format_count(rate)} tokens/s")
    yield _fact(sight.trained.get("mfu"), "MFU {:.1%}".format)
    yield _fact(sight.step_seconds, lambda seconds: f"{format_duration(seconds)} a step")
    yield _fact(sight.prediction.step_seconds, lambda seconds: f"{format_duration(seconds)} predicted")


def _memory(sight: Sight) -> Facts:
    """Of rank 0."""
    yield _fact(sight.trained.get("memory_bytes"), format_bytes)
    yield _fact(sight.prediction.memory_bytes, lambda size: f"{format_bytes(size)} predicted")
    yield _fact(sight.prediction.capacity_bytes, lambda size: f"{format_bytes(size)} there")


def _bubble(sight: Sight) -> Facts:
    yield _fact(sight.trained.get("bubble_fraction"), "{:.1%}".format)
    yield _fact(sight.prediction.bubble_fraction, "{:.1%} in theory".format)


def _hosts(sight: Sight) -> Facts:
    if sight.num_ranks:
        yield f"{sight.num_hosts}"
        started = sight.started_ranks
        yield f"{sight.num_ranks} ranks" if started >= sight.num_ranks else f"{started} of {sight.num_ranks} ranks started"


def _fact(value: Any, write: Callable[[float], str]) -> str | None:
    """A number in words; None if there is none."""
    known = number(value)
    return None if known is None else write(known)
