"""How a run stands, for people."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.launch.run_state import HostState, RunState, State, equal_hosts
from orchestrator.presence import Phase
from orchestrator.units import format_count, format_seconds

_NAMES = 4
"""Hosts of a group that are named."""
PHASES = {
    Phase.start: "the ranks start",
    Phase.data: "the data is prepared",
    Phase.build: "the engine is built",
    Phase.resume: "the checkpoint is loaded",
    Phase.script: "the script runs",
    Phase.train: "training",
    Phase.evaluate: "evaluating",
    Phase.save: "saving a checkpoint",
    Phase.end: "ending",
}
_STYLES = {State.completed: "bold green", State.running: "bold green", State.stopped: "bold yellow"}


def run_state_report(state: RunState, *, run: str, log: str, checkpoint: str | None) -> list[RenderableType]:
    """Where it stands, how fast it goes, what it last measured, and the hosts: equal ones on one line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", run)
    table.add_row("state", _state_line(state))
    for name, value in _details(state):
        table.add_row(name, value)
    table.add_row("checkpoint", checkpoint or "none yet")
    table.add_row("log", log)
    return [table, *([_hosts_table(state.hosts)] if state.hosts else [])]


def _state_line(state: RunState) -> Text:
    style = "bold red" if state.state.is_bad else _STYLES.get(state.state, "bold")
    line = Text.assemble((state.state.value.replace("_", " "), style))
    if state.progress is not None:
        line.append(f": step {state.step} of {state.max_steps}")
        if not state.state.is_over:
            line.append(f", {PHASES[state.progress.phase]}")
    return line if state.reason is None else line.append(f"; {state.reason}")


def _details(state: RunState) -> list[tuple[str, str]]:
    details = []
    if state.step_seconds is not None:
        rate = f"{state.step_seconds:.2f} s a step"
        left = state.remaining_seconds
        details.append(("time", rate if left is None else f"{rate}, {format_seconds(left)} left but for evaluations and saves"))
    controller = state.controller
    if controller is not None:
        since = format_seconds(max(time.time() - controller.started, 0))
        how = f"{controller.host}, process {controller.pid}, {controller.backend}{', detached' if controller.detached else ''}"
        details.append(("controller", how if state.state.is_over else f"{how}, since {since}"))
    if state.silent_seconds is not None and not state.state.is_over:
        details.append(("last sign", f"{format_seconds(state.silent_seconds)} ago"))
    if state.trained is not None:
        details.append(("last step", _training(state.trained)))
    if state.evaluated is not None:
        entry = state.evaluated
        details.append(("evaluation", f"step {entry['step']}{_value('  held-out loss {:.4f}', entry.get('held_out_loss'))}"))
    return details


def _training(entry: Mapping[str, Any]) -> str:
    """A script of the user's own reports what it likes of these."""
    rate = entry.get("tokens_per_second")
    shown = (
        _value("loss {:.4f}", entry.get("loss")),
        _value("lr {:.1e}", entry.get("lr")),
        _value("grad norm {:.2f}", entry.get("grad_norm")),
        "" if rate is None else f"{format_count(rate)} tokens/s",
    )
    return "  ".join([f"step {entry['step']}", *filter(None, shown)])


def _value(text: str, value: float | None) -> str:
    return "" if value is None else text.format(value)


def _hosts_table(hosts: Sequence[HostState]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("hosts", "names", "ranks", "started", "exit"):
        table.add_column(column)
    for group in equal_hosts(hosts):
        first = group[0]
        names = ", ".join(host.name for host in group[:_NAMES])
        more = f" and {len(group) - _NAMES} more" if len(group) > _NAMES else ""
        ranks = f"{len(first.ranks)} each" if len(group) > 1 else _rank_range(first.ranks)
        code = "-" if first.exit_code is None else str(first.exit_code)
        table.add_row(str(len(group)), names + more, ranks, f"{first.started} of {len(first.ranks)}", code)
    return table


def _rank_range(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
