"""How the making of tokens is shown: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from orchestrator.config.enums import View
from orchestrator.tokens.request import PrepareProgress, progress_in
from orchestrator.units import format_bytes, format_count, format_seconds

_SECONDS_BETWEEN_LINES = 10.0


class PrepareView:
    """Shows progress and remarks on ``console`` while it is entered. ``view`` is one that the console can show."""

    def __init__(self, console: Console, view: View) -> None:
        self._console, self._is_quiet = console, view is View.quiet
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rest]}"), console=console)
        self._task: TaskID | None = self._bar.add_task("starting", total=None, rest="") if view is View.live else None
        self._said = 0.0

    def __enter__(self) -> PrepareView:
        if self._task is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._bar.stop()

    def line(self, text: str) -> None:
        """Show what the process said."""
        progress = progress_in(text)
        if self._is_quiet:
            return
        if progress is None:
            self._console.print(text, soft_wrap=True)
        elif self._task is not None:
            self._bar.update(
                self._task, description=progress.stage, completed=progress.bytes, total=progress.num_bytes, rest=said(progress)
            )
        elif time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._console.print(f"{progress.stage}: {said(progress)}", soft_wrap=True)


def said(progress: PrepareProgress) -> str:
    """Share, rate, bad documents and the time that is left, in a line."""
    parts = [f"{progress.bytes / max(1, progress.num_bytes):.1%} of {format_bytes(progress.num_bytes)}"]
    if progress.tokens:
        rate = progress.fresh_tokens / progress.seconds if progress.seconds else 0.0
        parts += [f"{format_count(progress.tokens)} tokens", f"{format_count(rate)} tokens/s"]
    if progress.bad:
        kinds = ", ".join(f"{count} {kind}" for kind, count in progress.bad.items())
        parts.append(f"bad documents: {kinds}")
    if progress.fresh_bytes > 0:
        left = (progress.num_bytes - progress.bytes) * progress.seconds / progress.fresh_bytes
        parts.append(f"{format_seconds(left)} left")
    return ", ".join(parts)
