"""``results`` on runs and sweeps in every state, as their directories look then."""

from __future__ import annotations

import csv
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from orchestrator.commands import results
from orchestrator.commands.result import OK, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.config.sweep import ResultsConfig
from orchestrator.control import read_controller, write_controller
from orchestrator.errors import ConfigurationError
from orchestrator.launch.slurm.job import Job, write_job
from orchestrator.lease import EXPIRE_SECONDS
from orchestrator.run_dir import METRICS, write_json
from orchestrator.sweep_point import POINT_CONFIG
from tests.unit.results.made import STARTED, make_point, make_run, make_sweep, resolved

MICRO = "training.train_micro_batch_size_per_gpu"
OUT_OF_MEMORY = "rank 0 needs 1.45 TiB, 1.37 TiB more than there is"


def shown(*folders: Path, **options: Any) -> CommandResult:
    """What ``results`` makes of ``folders``."""
    result = results.run(RunConfig(run_dir="runs/none", results=ResultsConfig(**options)), [str(folder) for folder in folders])
    assert result.exit_code == OK
    return result


def rows(*folders: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The rows by the names of the runs."""
    return {row["run"]: row for row in shown(*folders, **options).payload["rows"]}


def order(*folders: Path, **options: Any) -> list[str]:
    """The names of the runs from the top down."""
    return list(rows(*folders, **options))


def said(result: CommandResult, width: int = 160) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        for part in (*result.text, *result.remarks):
            console.print(part)
    return capture.get()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ZeRO stages x three micro-batches: seven points have finished, one does not fit, one crashed."""
    folder = make_sweep(tmp_path_factory.mktemp("sweeps") / "grid")
    for number, (stage, micro) in enumerate((stage, micro) for stage in (1, 2, 3) for micro in (1, 2, 10)):
        point, words = folder / str(number), (f"zero=stage{stage}", f"{MICRO}={micro}")
        if number == 4:
            make_run(point, words[0], options={MICRO: micro}, ending="failed", reason="rank 1 was killed")
            make_point(point, number, "failed", *words, reason="rank 1 was killed", exit_code=4)
        elif number == 8:
            make_point(point, number, "infeasible", *words, reason=OUT_OF_MEMORY, exit_code=2)
            composed = resolved((words[0],)).config
            composed["training"][MICRO.split(".")[1]] = micro
            write_json(point / POINT_CONFIG, composed)
        else:
            held_out = 3 + stage / 10 + micro
            make_run(point, words[0], options={MICRO: micro}, held_out=held_out, seconds=micro / 8, losses=(4, 3, 2, 1))
            make_point(point, number, "finished", *words, metric=held_out, exit_code=0)
    return folder


def test_a_sweep_shows_what_varies_how_its_points_ended_and_the_best(sweep: Path) -> None:
    result = shown(sweep)
    assert result.payload["varies"] == ["zero.stage", MICRO]
    assert result.payload["counts"] == {"finished": 7, "infeasible": 1, "failed": 1}
    by_name = {row["run"]: row for row in result.payload["rows"]}
    assert [name for name, row in by_name.items() if row["best"]] == ["0"]
    assert (by_name["8"]["status"], by_name["8"]["reason"], by_name["8"]["zero.stage"]) == ("infeasible", OUT_OF_MEMORY, 3)
    finished = by_name["5"]
    assert (finished["step"], finished["step_seconds"], finished["tokens_per_second"]) == (4, 1.25, 800)
    assert (finished["memory_bytes"], finished["predicted_memory_bytes"], finished["duration_seconds"]) == (2**30, 2**31, 60)
    text = said(result)
    for part in ("held_out_loss", "* 4.1", "1.00 / 2.00 GiB", "4 of 5", "7 finished, 1 infeasible, 1 failed", OUT_OF_MEMORY):
        assert part in text
    assert "MFU" not in text, "a column that no row has anything in"


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, ["0", "3", "6", "1", "7", "2", "5"], "8"),
        ({"sort": "run"}, ["0", "1", "2"], "8"),
        ({"sort": MICRO, "descending": True}, ["2", "5", "8"], "6"),
        ({"sort": "stage", "descending": True}, ["6", "7", "8"], "2"),
        ({"sort": "held_out_loss", "descending": True}, ["5", "2", "7"], "8"),
        ({"sort": "metric"}, ["4", "0", "3"], "8"),
        ({"sort": "step_seconds"}, ["0", "3", "6"], "8"),
        ({"sort": "status"}, ["4", "0"], "8"),
    ],
)
def test_rows_are_sorted_by_any_column_and_what_is_missing_comes_last(
    sweep: Path, options: dict[str, Any], first: list[str], last: str
) -> None:
    names = order(sweep, **options)
    assert names[: len(first)] == first
    assert names[-1] == last


def test_an_unknown_column_is_refused_with_those_there_are(sweep: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        shown(sweep, sort="tokens_per_secnd")
    (finding,) = refused.value.findings
    assert (finding.field, finding.rule) == ("results.sort", "results-column")
    assert "did you mean tokens_per_second?" in finding.fix
    assert MICRO in finding.fix


@pytest.mark.parametrize(
    ("ending", "more", "status", "reason"),
    [
        ("completed", {}, "finished", None),
        ("failed", {"reason": "rank 1 was killed"}, "failed", "rank 1 was killed"),
        ("hung", {"reason": "no progress"}, "hung", "no progress"),
        ("interrupted", {"reason": "it was interrupted", "stopped_by": "signal"}, "interrupted", "it was interrupted"),
        ("interrupted", {"reason": "it was asked to stop", "stopped_by": "request"}, "stopped", "it was asked to stop"),
        (None, {}, "running", None),
        ("dead", {}, "dead", "its controller on node (process 1) has gone"),
    ],
)
@pytest.mark.parametrize("point", [None, "running"])
def test_a_run_stands_as_status_says_whatever_its_point_last_said(
    tmp_path: Path, ending: str | None, more: dict[str, Any], status: str, reason: str | None, point: str | None
) -> None:
    run = make_run(tmp_path / "run", ending=ending, **more)
    if point is not None:
        make_point(run, 0, point, started=time.time())
    (row,) = shown(tmp_path).payload["rows"]
    assert (row["status"], row["reason"]) == (status, reason)


def test_a_point_that_runs_again_is_not_its_earlier_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path / "0", ending="failed", reason="rank 1 was killed")
    make_point(run, 0, "running", started=time.time())
    record = read_controller(run / "attempts" / "1")
    assert record is not None
    write_controller(run / "attempts" / "1", replace(record, started=time.time() - 600))
    (row,) = shown(tmp_path).payload["rows"]
    assert (row["status"], row["reason"]) == ("running", None)


def test_runs_that_have_not_come_to_an_attempt(tmp_path: Path) -> None:
    make_point(tmp_path / "begun", 0, "running", started=time.time())
    make_point(tmp_path / "forgotten", 1, "running", started=time.time() - 86400)
    make_point(tmp_path / "cut", 2, "interrupted", reason="the sweep was interrupted")
    write_job(tmp_path / "queued", Job(job_id="7", script="job.sbatch", output="slurm-7.out", submitted=STARTED))
    dry = make_run(tmp_path / "dry", ending=None)
    for name in ("controller.json", "launcher.log", "lease", "progress", METRICS):
        (dry / "attempts" / "1" / name).unlink()
    statuses = {name: row["status"] for name, row in rows(tmp_path).items()}
    assert statuses == {
        "begun": "running",
        "forgotten": "dead",
        "cut": "interrupted",
        "queued": "submitted",
        "dry": "not started",
    }


def test_many_dead_runs_are_waited_for_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("orchestrator.lease.time.sleep", waited.append)
    monkeypatch.setattr("orchestrator.lease.time.monotonic", lambda: sum(waited))
    for number in range(5):
        run = make_run(tmp_path / str(number), ending=None)
        os.utime(run / "attempts" / "1" / "lease", (time.time() - 60,) * 2)
    assert {row["status"] for row in rows(tmp_path).values()} == {"dead"}
    assert sum(waited) <= EXPIRE_SECONDS + 1


def test_a_run_that_goes_on_shows_what_it_has_so_far(tmp_path: Path) -> None:
    make_run(tmp_path / "evaluated", ending=None, losses=(4, 3, 2.5, 2.25), held_out=2.75, mfu=0.4)
    make_run(tmp_path / "not", ending=None, losses=(4, 3.5))
    by_name = rows(tmp_path)
    assert (by_name["evaluated"]["metric_name"], by_name["evaluated"]["metric"]) == ("held_out_loss", 2.75)
    assert (by_name["evaluated"]["mfu"], by_name["evaluated"]["memory_bytes"]) == (0.4, 2**29)
    assert by_name["evaluated"]["predicted_memory_bytes"] > 0
    assert (by_name["not"]["metric_name"], by_name["not"]["metric"]) == ("loss", 3.5)
    assert not any(row["best"] for row in by_name.values()), "nothing has finished"


def test_the_held_out_loss_of_a_long_run_is_found_far_before_its_end(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ending=None, losses=[3.0] * 2000)
    metrics = tmp_path / "run" / "attempts" / "1" / METRICS
    early = json.dumps({"kind": "evaluate", "step": 1, "held_out_loss": 4.5})
    metrics.write_text(f"{early}\n{metrics.read_text()}")
    (row,) = shown(tmp_path).payload["rows"]
    assert (row["metric_name"], row["metric"], row["step_seconds"]) == ("held_out_loss", 4.5, 0.5)


def test_the_objective_of_a_sweep_is_shown_and_its_largest_value_the_best(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "speed", metric="tokens_per_second", direction="maximize")
    for number, seconds in enumerate((0.5, 0.25, 1.0)):
        make_run(folder / str(number), seconds=seconds, losses=(3, 2, 1))
        make_point(folder / str(number), number, "finished", metric=1000 / seconds, metric_name="tokens_per_second")
    make_run(folder / "3", seconds=0.1, losses=(3, 2, 1), ending=None)
    make_point(folder / "3", 3, "running", started=time.time())
    result = shown(folder)
    assert [(row["run"], row["metric"], row["best"]) for row in result.payload["rows"]] == [
        ("1", 4000, True),
        ("0", 2000, False),
        ("2", 1000, False),
        ("3", 10000, False),
    ]
    assert "largest tokens_per_second: 1" in said(result)


def test_only_what_tells_runs_apart_is_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "model=demo", options={"training.max_steps": 5})
    make_run(tmp_path / "b", "model=gpt2", "cluster.host_memory_gib=64", options={"optimizer.lr": 0.5})
    # the first of what a group sets stands for it (the smoke experiment names its model itself); max_steps is as by default
    assert shown(tmp_path).payload["varies"] == ["model.family", "cluster.host_memory_gib", "optimizer.lr"]


def test_points_of_which_only_the_words_are_known_are_told_apart_by_them(tmp_path: Path) -> None:
    for number, rate in enumerate(("1e-3", "1e-2")):
        make_point(tmp_path / str(number), number, "infeasible", f"optimizer.lr={rate}", "zero=stage3", reason=OUT_OF_MEMORY)
    result = shown(tmp_path)
    assert result.payload["varies"] == ["optimizer.lr"]
    assert [row["optimizer.lr"] for row in result.payload["rows"]] == ["1e-3", "1e-2"]
    assert "infeasible  0, 1: rank 0 needs" in said(result), "equal reasons are said once"


def test_sweeps_and_runs_are_found_at_any_depth_and_once(sweep: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "deep" / "one")
    (tmp_path / "runs" / "notes" / "attempts").mkdir(parents=True)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    found = order(tmp_path / "runs", sweep, sweep / "0", tmp_path, sort="run")
    assert len(found) == 10
    assert rows(sweep / "3")[str(sweep / "3")]["sweep"] == str(sweep.absolute())


@pytest.mark.parametrize("damaged", ["config.json", "plan.json", "result.json", "point.json", "sweep.json", "outcome.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '{"training": 3, "status": "odd", "memory": null}', b"\xff\xfe"])
def test_damaged_files_leave_gaps_and_are_named(tmp_path: Path, damaged: str, content: str | bytes) -> None:
    folder = make_sweep(tmp_path / "sweep")
    make_run(folder / "0", held_out=2.0)
    make_point(folder / "0", 0, "finished", metric=2.0)
    place = {"sweep.json": folder, "point.json": folder / "0"}.get(damaged, folder / "0" / "attempts" / "1")
    (place / damaged).write_bytes(content if isinstance(content, bytes) else content.encode())
    result = shown(tmp_path)
    (row,) = result.payload["rows"]
    said(result)
    if content in ("", "{", b"\xff\xfe") and damaged != "outcome.json":
        assert f"{damaged} is damaged" in row["reason"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("nowhere", "does not exist"), ("file", "is not a folder"), ("empty", "holds no run or sweep")],
)
def test_folders_without_runs_are_refused_all_at_once(tmp_path: Path, sweep: Path, name: str, told: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=told) as refused:
        shown(tmp_path / name, sweep, tmp_path / "missing")
    assert len(refused.value.findings) == 2


def test_without_a_folder_those_are_meant_that_launch_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="no runs/ or sweeps/ here"):
        shown()
    make_run(tmp_path / "runs" / "one")
    assert order() == ["one"]


def test_the_table_as_csv_has_every_column(sweep: Path, tmp_path: Path) -> None:
    result = shown(sweep, csv=str(tmp_path / "new" / "table.csv"), sort="run")
    with (tmp_path / "new" / "table.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == 9
    assert {key: read[8][key] for key in ("run", "status", "zero.stage", "metric", "reason")} == {
        "run": "8",
        "status": "infeasible",
        "zero.stage": "3",
        "metric": "",
        "reason": OUT_OF_MEMORY,
    }
    assert result.payload["csv"] == str(tmp_path / "new" / "table.csv")


def test_a_list_in_csv_is_json(tmp_path: Path) -> None:
    for number, value in enumerate(("[a,'b c']", "[d]")):
        make_point(tmp_path / str(number), number, "infeasible", f"tracking.tags={value}", reason=OUT_OF_MEMORY)
    shown(tmp_path, csv=str(tmp_path / "table.csv"))
    with (tmp_path / "table.csv").open(newline="") as file:
        assert [json.loads(row["tracking.tags"]) for row in csv.DictReader(file)] == [["a", "b c"], ["d"]]


@pytest.mark.parametrize("option", ["csv", "plot"])
def test_what_cannot_be_written_is_refused(sweep: Path, tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError) as refused:
        shown(sweep, **{option: str(tmp_path / "file" / "x")})
    (finding,) = refused.value.findings
    assert (finding.field, finding.rule) == (f"results.{option}", "results-file")


def test_plots_show_the_metric_against_each_option(sweep: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots = shown(sweep, plot=str(tmp_path / "figures")).payload["plots"]
    assert {Path(plot).name for plot in plots} == {
        f"{option}.{kind}" for option in ("zero.stage", MICRO) for kind in ("svg", "png")
    }
    texts = {}
    for option in ("zero.stage", MICRO):
        picture = ElementTree.parse(tmp_path / "figures" / f"{option}.svg")
        texts[option] = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert {option, "held_out_loss", "finished", "best"} <= set(texts[option])
    assert {"1", "2", "10"} <= set(texts[MICRO]), "a tick at each value"
    assert all((tmp_path / "figures" / f"{option}.png").stat().st_size > 1000 for option in texts)


def test_there_is_nothing_to_plot_without_a_metric(tmp_path: Path) -> None:
    make_point(tmp_path / "0", 0, "infeasible", "optimizer.lr=1", reason=OUT_OF_MEMORY)
    assert "nothing to plot" in said(shown(tmp_path, plot=str(tmp_path / "figures")))
    assert not (tmp_path / "figures").exists()


def test_plots_without_matplotlib_say_what_to_install(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match="matplotlib") as refused:
        shown(sweep, plot=str(tmp_path / "figures"))
    assert "orchestrator[plot]" in refused.value.findings[0].fix
