"""``results``: runs and sweeps side by side, also while they run."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from orchestrator.commands.result import OK, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.report.plots import plot_results
from orchestrator.report.results import results_report
from orchestrator.results.find import FoundRun, Search, TooManyFoldersError
from orchestrator.results.read import read_rows
from orchestrator.results.table import ResultsTable, UnknownColumnError, table_of
from orchestrator.run_dir import write_text

HELP = """Show runs and sweeps side by side: what varies, how they stand, what came out, and what was predicted and measured.

Folders are searched at whatever depth; without one, runs/ and sweeps/ are. Runs that still go on are shown as they are now.
tokens/s, MFU and the time of a step are medians of the newest steps; the memory is that of the fullest rank.

Examples:
  orchestrator results sweeps/2026-07-01_12-00-00
  orchestrator results runs sweeps results.sort=tokens_per_second results.descending=true
  orchestrator results sweeps/lr results.csv=lr.csv results.plot=figures"""

FOLDERS = (Path("runs"), Path("sweeps"))
"""Where ``launch`` puts runs and sweeps that are not told where to go."""


def run(config: RunConfig, names: Sequence[str]) -> CommandResult:
    """The table of the runs in the folders ``names``.

    Raises:
        ConfigurationError: a folder is missing or holds no run, a column is unknown, or a file cannot be written.
    """
    search = Search()
    found = _found(search, names)
    try:
        table = table_of(read_rows(found), sort=config.results.sort, descending=config.results.descending)
    except UnknownColumnError as unknown:
        raise ConfigurationError([_unknown_column(unknown)]) from None
    payload = {
        "rows": table.entries(),
        "varies": list(table.options),
        "metric": table.metric_name,
        "counts": dict(table.counts),
        "unreadable": [str(path) for path in search.unreadable],
    }
    remarks: list[RenderableType] = [Text(f"warning: {path} cannot be looked into") for path in search.unreadable]
    if config.results.csv is not None:
        path = _written_csv(table, Path(os.path.expanduser(config.results.csv)))  # noqa: PTH111 - Path's raises for unknown users
        payload["csv"] = str(path)
        remarks.append(Text(f"table: {path}"))
    if config.results.plot is not None:
        plots = _plotted(table, Path(os.path.expanduser(config.results.plot)))  # noqa: PTH111
        payload["plots"] = list(map(str, plots))
        remarks += [Text(f"plot: {path}") for path in plots] or [Text("nothing to plot: no metric yet, or nothing varies")]
    return CommandResult(exit_code=OK, payload=payload, text=results_report(table), remarks=remarks)


def _found(search: Search, names: Sequence[str]) -> list[FoundRun]:
    folders = [Path(os.path.expanduser(name)) for name in names] or [path for path in FOLDERS if path.is_dir()]  # noqa: PTH111
    fix = "name folders with runs or sweeps, as launch printed them"
    if not folders:
        raise ConfigurationError(
            [error("results", "command", "no folder is named, and there is no runs/ or sweeps/ here", fix)]
        )
    findings = list(_missing(folders, fix))
    try:
        found = search.runs([folder for folder in folders if folder.is_dir()])
    except TooManyFoldersError as problem:
        raise ConfigurationError([error("results", "command", str(problem), "name a folder nearer to the runs")]) from None
    findings += [error("results", "command", f"{folder} holds no run or sweep", fix) for folder in search.empty]
    if findings:
        raise ConfigurationError(findings)
    return found


def _missing(folders: Sequence[Path], fix: str) -> Iterator[Finding]:
    for folder in folders:
        if not folder.is_dir():
            yield error("results", "command", f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}", fix)


def _unknown_column(unknown: UnknownColumnError) -> Finding:
    near = get_close_matches(str(unknown), unknown.known, n=1)
    fix = f"{f'did you mean {near[0]}? ' if near else ''}columns: {', '.join(unknown.known)}"
    return error("results-column", "results.sort", f"there is no column {str(unknown)!r}", fix)


def _written_csv(table: ResultsTable, path: Path) -> Path:
    written = io.StringIO(newline="")
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow((*table.columns, "metric_name"))
    for row in table.rows:
        values = [*table.entry(row).values(), row.metric_name]
        # lists as JSON, which every reader of tables can take apart again
        writer.writerow("" if value is None else json.dumps(value) if isinstance(value, list) else value for value in values)
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        write_text(path, written.getvalue())
    except OSError as problem:
        message = f"{path} cannot be written: {problem.strerror}"
        raise ConfigurationError([error("results-file", "results.csv", message, "name a file that can be written")]) from None
    return path


def _plotted(table: ResultsTable, folder: Path) -> list[Path]:
    try:
        return plot_results(table, folder)
    except ImportError:
        fix = "pip install 'orchestrator[plot]', or leave results.plot out"
        raise ConfigurationError(
            [error("results-plot", "results.plot", "plots need matplotlib, which is not installed", fix)]
        ) from None
    except OSError as problem:
        message = f"{folder} cannot be written to: {problem.strerror}"
        raise ConfigurationError(
            [error("results-file", "results.plot", message, "name a folder that can be written to")]
        ) from None
