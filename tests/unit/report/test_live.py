"""The views of a run: what stands on the terminal while it goes on, and what is left there."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.config.enums import View
from orchestrator.launch.command import HOSTFILE
from orchestrator.presence import RankRecord, write_rank
from orchestrator.report.live import live_view, panel
from orchestrator.report.view import followed, view_of
from orchestrator.results.watch import RunWatch
from orchestrator.run_dir import METRICS
from tests.unit.report.screen import Terminal, screen
from tests.unit.results.made import make_run

LINE = "step 3/9  loss 5.5436"
COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])[;m]")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """A pipeline of two stages that has taken four steps."""
    words = ("parallelism.pipeline_parallel_size=2",)
    run = make_run(tmp_path / "books", *words, losses=(4, 3, 2, 1.5), held_out=2.25, ending=None, mfu=0.41)
    path = run / "attempts" / "1"
    (path / HOSTFILE).write_text("node-a slots=1\nnode-b slots=1\n")
    write_rank(path, RankRecord(rank=0, local_rank=0, host="node-a", pid=1))
    return path


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def log(attempt: Path, **entry: object) -> None:
    with (attempt / METRICS).open("a") as file:
        file.write(json.dumps(entry) + "\n")


@pytest.mark.parametrize("width", [40, 100])
def test_everything_known_stands_in_the_panel(attempt: Path, width: int) -> None:
    log(attempt, kind="train", step=5, loss=1.25, step_seconds=0.5, tokens_per_second=2e3, mfu=0.43, bubble_fraction=0.31)
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(panel(RunWatch(attempt).look(), width))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(capture.get().split())
    for part in (
        "books: training",
        "5 of 5",
        "0.0 s left",
        "1.2500, held out 2.2500 (step 4)",
        "2 K tokens/s, MFU 43.0%, 2.30 s a step",
        "MiB predicted",
        "GiB there",
        "31.0%, 20.0% in theory",
        "2, 1 of 2 ranks started",
    ):
        assert part in text


@pytest.mark.parametrize(
    "metrics", ["", "{", '{"kind": "train"}\n', '{"kind": "train", "step": "x", "loss": null, "mfu": "?"}\n[1]\n']
)
def test_files_that_are_missing_or_damaged_leave_gaps(attempt: Path, metrics: str) -> None:
    (attempt / METRICS).write_text(metrics)
    for name in ("plan.json", "config.json", "progress", "controller.json", HOSTFILE):
        (attempt / name).unlink()
    console = Console(file=io.StringIO(), width=80)
    console.print(panel(RunWatch(attempt).look(), 80))


def test_lines_scroll_above_the_panel_which_follows_the_run_and_goes_with_it(attempt: Path) -> None:
    terminal = Terminal()
    with live_view(attempt, Console(file=terminal.file)) as echo:
        until(lambda: "4 of 5" in terminal.written)
        echo(LINE)
        echo("a [bold]line[/bold]")
        log(attempt, kind="train", step=5, loss=1.125, step_seconds=0.5)
        until(lambda: "1.1250" in terminal.written)
        shown = screen(terminal.written)
        assert shown[:3] == [LINE, "a [bold]line[/bold]", "books: training"]
        assert sum("5 of 5" in line for line in shown) == 1
        echo("the last line")
    written = terminal.end()
    assert [line for line in screen(written) if line] == [LINE, "a [bold]line[/bold]", "the last line"]
    assert "\x1b[?" not in written, "a mode of the terminal that a killed launcher would leave behind"


def test_a_window_that_becomes_narrow_is_drawn_anew(attempt: Path) -> None:
    terminal = Terminal(columns=100)
    with live_view(attempt, Console(file=terminal.file)) as echo:
        until(lambda: "4 of 5" in terminal.written)
        terminal.resize(40)
        before = len(terminal.written)
        echo("x" * 70)
        until(lambda: len(terminal.written) > before + 2000)
        drawn = screen(terminal.written[before:])
    assert "x" * 70 in drawn
    after = drawn[drawn.index("x" * 70) + 1 :]
    assert max(map(len, after)) <= 40
    assert "x" * 70 in screen(terminal.end())


def test_without_color_there_is_none(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    for name, value in (("colored", ""), ("plain", "1")):
        monkeypatch.setenv("NO_COLOR", value)
        terminal = Terminal()
        with live_view(attempt, Console(file=terminal.file)):
            until(lambda: "ranks started" in terminal.written)  # noqa: B023
        written[name] = terminal.end()
    assert COLOR.search(written["colored"])
    assert not COLOR.search(written["plain"])


def test_a_terminal_that_is_closed_or_stands_still_keeps_nobody_waiting(attempt: Path) -> None:
    gone, still = Terminal(), Terminal(read=False)
    for terminal in (gone, still):
        started = time.monotonic()
        with live_view(attempt, Console(file=terminal.file)) as echo:
            if terminal is gone:
                until(lambda: "4 of 5" in gone.written)
                gone.hang_up()
            for _ in range(3000):
                echo(LINE)
            assert time.monotonic() - started < 20
        assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("asked", "for_program", "terminal", "term", "view"),
    [
        (View.auto, False, True, "xterm", View.live),
        (View.auto, True, True, "xterm", View.lines),
        (View.auto, False, False, "xterm", View.lines),
        (View.auto, False, True, "dumb", View.lines),
        (View.live, True, True, "xterm", View.live),
        (View.live, False, False, "xterm", View.lines),
        (View.lines, False, True, "xterm", View.lines),
        (View.quiet, False, True, "xterm", View.quiet),
    ],
)
def test_a_live_view_needs_a_terminal(
    asked: View, for_program: bool, terminal: bool, term: str, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = Terminal().file if terminal else io.StringIO()
    assert view_of(asked, Console(file=file), only_if_asked=for_program) is view


LINES = (
    "data: 1000 tokens",
    "model demo: 3 M parameters",
    "W&B offline: /runs/x/wandb",
    LINE,
    "step 9  held-out loss 5.5",
    "warning: the checkpoint is of another layout",
    "W&B could not start online: timeout",
    "no progress for 31 min: asking every rank where it stands",
)


@pytest.mark.parametrize(("view", "shown"), [(View.lines, LINES), (View.quiet, LINES[5:])])
def test_lines_come_as_they_are_and_quiet_ones_only_if_something_is_unusual(
    view: View, shown: tuple[str, ...], attempt: Path
) -> None:
    file = io.StringIO()
    with followed(view, Console(file=file), attempt) as echo:
        for line in LINES:
            echo(line)
    assert file.getvalue() == "".join(f"{line}\n" for line in shown)
