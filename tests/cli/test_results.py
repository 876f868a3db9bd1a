"""``results``, and the live view, as their users see them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.control import OUTCOME
from orchestrator.launch.command import HOSTFILE
from orchestrator.lease import Lease
from orchestrator.run_dir import LOG, write_json
from tests.cli.command_line import orchestrator
from tests.unit.report.screen import Terminal, screen
from tests.unit.results.made import make_point, make_run, make_sweep


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a sweep of two points."""
    folder = tmp_path_factory.mktemp("home")
    make_run(folder / "runs" / "é", held_out=2.5)
    sweep = make_sweep(folder / "sweeps" / "lr")
    for number, rate in enumerate((0.1, 0.01)):
        make_run(sweep / str(number), options={"optimizer.lr": rate}, held_out=3.0 - rate)
        make_point(sweep / str(number), number, "finished", f"optimizer.lr={rate}", metric=3.0 - rate)
    return folder


def test_the_table_of_a_folder_starts_nothing_and_writes_nothing(home: Path) -> None:
    before = sorted(home.rglob("*"))
    ended = orchestrator("results", cwd=home, watched=True, environment={"PYTHONIOENCODING": "ascii"})
    assert ended.code == 0, ended.everything
    for part in ("sweeps/lr/0", "runs/\\xe9", "optimizer.lr", "held_out_loss", "3 runs: 3 finished", "* least held_out_loss"):
        assert part in ended.stdout
    assert ended.stderr == ""
    assert sorted(home.rglob("*")) == before


def test_json_and_files(home: Path, tmp_path: Path) -> None:
    words = ("sweeps/lr", "results.sort=lr", f"results.csv={tmp_path / 'table.csv'}", "output=json")
    ended = orchestrator("results", *words, cwd=home)
    assert ended.code == 0, ended.everything
    assert [row["optimizer.lr"] for row in ended.json["rows"]] == [0.01, 0.1]
    assert ended.json["varies"] == ["optimizer.lr"]
    assert (tmp_path / "table.csv").read_text().startswith("run,status,optimizer.lr,metric,")


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [(("results.sort=loss",), "results.sort", "columns: run, status,"), (("nowhere",), "command", "name folders")],
)
def test_what_cannot_be_shown_is_refused(words: tuple[str, ...], field: str, told: str, home: Path) -> None:
    ended = orchestrator("results", *words, "output=json", cwd=home)
    assert ended.code == 2
    (finding,) = ended.json["findings"]
    assert finding["field"] == field
    assert told in finding["fix"]


@pytest.mark.parametrize("view", ["auto", "lines", "quiet"])
def test_a_run_is_followed_on_a_terminal_in_the_view_that_is_asked_for(tmp_path: Path, view: str) -> None:
    run = make_run(tmp_path / "books", losses=(4, 3, 2.5), ending=None)
    attempt = run / "attempts" / "1"
    (attempt / HOSTFILE).write_text("node-a slots=2\n")
    lease, terminal = Lease(attempt), Terminal(rows=60)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    following = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "logs", str(run), "follow=true", f"view={view}"],
        cwd=tmp_path,
        env={**environment, "TERM": "xterm-256color"},
        stdin=terminal.file,
        stdout=terminal.file,
        stderr=terminal.file,
    )
    try:
        deadline = time.monotonic() + 120
        if view != "quiet":
            while {"auto": "3 of 5", "lines": "a line"}[view] not in terminal.written:
                assert time.monotonic() < deadline
                lease.renew()
                time.sleep(0.1)
        with (attempt / LOG).open("a") as log:
            log.write("another line\n")
        write_json(attempt / OUTCOME, {"status": "completed", "reason": "the run has ended"})
        assert following.wait(60) == 0
    finally:
        following.kill()
    written = terminal.end()
    shown = {"auto": ["a line", "another line"], "lines": ["a line", "another line"], "quiet": []}[view]
    assert [line for line in screen(written) if line] == [*shown, "completed: the run has ended"]
    assert ("books: training" in written.replace("\x1b[1m", "").replace("\x1b[0m", "")) == (view == "auto")
