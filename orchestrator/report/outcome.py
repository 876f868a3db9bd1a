"""How a run ended, for people: the rank that failed first, its last lines, and one table of hosts and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.control import ControllerRecord
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.rank_outcome import RankOutcome

_MOST_LINES = 40
_MOST_FRAMES = 15
_MOST_GROUPS = 12
"""Rows of the table, and groups of equal stacks."""


def detached_report(controller: ControllerRecord, run_dir: Path) -> list[RenderableType]:
    """That a run goes on by itself, and how to follow and end it."""
    return [
        Text(f"the run goes on by itself: its controller is process {controller.pid} on {controller.host}"),
        *(Text(f"    orchestrator {verb} {run_dir}") for verb in ("status", "logs", "stop")),
    ]


def interruption_report(outcome: Outcome, log_file: Path) -> list[RenderableType]:
    """That a run was stopped, and what it saved."""
    saved = "nothing was saved" if outcome.saved is None else f"saved: checkpoint {outcome.saved}"
    words = f"interrupted ({outcome.reason}); {saved}; every process of the run has ended. Log: {log_file}"
    return [Text(words)]


def failure_report(outcome: Outcome, log_file: Path) -> list[RenderableType]:
    """Why a run failed: the first rank's own words before the others' noise."""
    report: list[RenderableType] = [Text.assemble(("the run failed: ", "bold red"), outcome.reason)]
    if outcome.first is not None:
        report.append(Text(f"first to fail: rank {outcome.first.rank} on {outcome.first.host}; its last lines:"))
    elif outcome.lines:
        report.append(Text("the last lines before it:"))
    if outcome.lines:
        report.append(Text("\n".join(f"    {line}" for line in outcome.lines[-_MOST_LINES:])))
    for group in outcome.stacks[:_MOST_GROUPS]:
        frames = "\n".join(f"    {frame}" for frame in group.frames[:_MOST_FRAMES])
        report.append(Text(f"rank {_numbers(group.ranks)} stands in, the innermost first:\n{frames}"))
    if outcome.ranks or len(outcome.hosts) > 1:
        report.append(_table(outcome))
    if outcome.meaning is not None:
        report += [Text(f"it means: {outcome.meaning}", style="bold"), Text(f"    fix: {outcome.fix}")]
    return [*report, Text(f"log: {log_file}")]


def _table(outcome: Outcome) -> RenderableType:
    """A row for each host and what became of its ranks; hosts to which the same happened share one."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("host", "rank", "exit", "what became of it"):
        table.add_column(column, overflow="fold")
    rows = _rows(outcome)
    for hosts, ranks, code, told in rows[:_MOST_GROUPS]:
        table.add_row(_names(hosts), _numbers(ranks), code, told)
    if len(rows) > _MOST_GROUPS:
        table.add_row("...", "", "", f"and {len(rows) - _MOST_GROUPS} more kinds; all of them are in outcome.json")
    return table


def _rows(outcome: Outcome) -> list[tuple[list[str], list[int], str, str]]:
    first = outcome.first.rank if outcome.first is not None else -1
    grouped: dict[tuple[bool, str, str], list[RankOutcome]] = {}
    for rank in outcome.ranks:
        code = "-" if rank.exit_code is None else str(rank.exit_code)
        told = f"failed first: {rank.meaning}" if rank.rank == first else rank.meaning
        grouped.setdefault((rank.rank != first, code, told), []).append(rank)
    rows = [
        (list(dict.fromkeys(rank.host for rank in ranks)), [rank.rank for rank in ranks], code, told)
        for (_, code, told), ranks in sorted(grouped.items(), key=lambda item: (item[0][0], len(item[1])))
    ]
    with_ranks = {rank.host for rank in outcome.ranks}
    bare: dict[int | None, list[str]] = {}
    for host in outcome.hosts if len(outcome.hosts) > 1 else ():
        if host.host not in with_ranks:
            bare.setdefault(host.exit_code, []).append(host.host)
    for exit_code, names in bare.items():
        told = "nothing is known of its launcher" if exit_code is None else "no rank was seen; its launcher's exit code"
        rows.append((names, [], "-" if exit_code is None else str(exit_code), told))
    return rows


def _names(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{hosts[0]}, {hosts[1]} ... {hosts[-1]} ({len(hosts)})"


def _numbers(ranks: Sequence[int]) -> str:
    """``0-3, 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
