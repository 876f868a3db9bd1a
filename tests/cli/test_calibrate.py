"""``orchestrator calibrate`` on the real command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.commands.finished_runs import read_runs
from tests.cli.command_line import orchestrator
from tests.finished_run import STACK, finished_run

LAYOUTS = {
    "a": ("zero.stage=0", 0.30),
    "b": ("zero.stage=2", 0.36),
    "c": ("model.num_hidden_layers=8", 0.70),
    "d": ("training.train_micro_batch_size_per_gpu=4", 0.20),
}


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    for name, (words, seconds) in LAYOUTS.items():
        finished_run(tmp_path / "runs" / name, words, seconds=[9.0, 5.0, *([seconds] * 5)])
    return [f"runs/{name}" for name in LAYOUTS]


def test_runs_become_a_preset_that_predicts_their_steps(runs: list[str], tmp_path: Path) -> None:
    ended = orchestrator("calibrate", *runs, "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    entries = {entry["run"]: entry for entry in ended.json["runs"]}
    assert [entries[run]["measured_seconds"] for run in runs] == [seconds for _, seconds in LAYOUTS.values()]
    assert max(abs(entry["error_after"]) for entry in entries.values()) < 0.2
    written = yaml.safe_load((tmp_path / "conf.d" / "cluster" / "local_cpu_calibrated.yaml").read_text())
    assert written == {**ended.json["preset"]["values"], "name": written["name"], "measured_with": written["measured_with"]}
    for part in ("Test CPU", "torch 2.9.0", "DeepSpeed 0.19.8", "4 runs"):
        assert part in written["measured_with"]

    words = ["experiment=smoke", LAYOUTS["c"][0], "output=json", *ended.json["preset"]["usage"].split()]
    plan = orchestrator("validate", *words, cwd=tmp_path)
    assert plan.code == 0, plan.everything
    assert plan.json["time"]["step_seconds"] == pytest.approx(entries["runs/c"]["predicted_after_seconds"], rel=0.01)


def test_what_was_found_is_said_in_words_and_a_calibration_is_renewed(runs: list[str], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for _ in range(2):
        ended = orchestrator("calibrate", *runs, "calibration.name=mine", "--config-dir", "own", cwd=tmp_path)
        assert ended.code == 0, ended.everything
    for told in ("median error", "step overhead", "these runs say nothing of: network", "cluster=mine --config-dir own"):
        assert told in ended.stdout, told
    assert (tmp_path / "own" / "cluster" / "mine.yaml").exists()


def test_a_calibrated_cluster_is_calibrated_further(runs: list[str], tmp_path: Path) -> None:
    first = orchestrator("calibrate", *runs, "output=json", cwd=tmp_path)
    words = first.json["preset"]["usage"].split()
    again = orchestrator("calibrate", *runs, "calibration.name=again", "output=json", *words, cwd=tmp_path)
    assert again.code == 0, again.everything
    before = [entry["predicted_before_seconds"] for entry in again.json["runs"]]
    assert before == pytest.approx([entry["predicted_after_seconds"] for entry in first.json["runs"]], rel=0.01)


def test_without_speeds_there_is_no_time_but_the_way_to_it(tmp_path: Path) -> None:
    plan = orchestrator("validate", "experiment=smoke", "output=json", cwd=tmp_path)
    assert plan.json["time"] is None
    assert "orchestrator calibrate" in plan.json["time_unknown"]


@pytest.mark.parametrize(
    ("words", "rule", "told"),
    [
        ((), "calibrate-run", "no run is named"),
        (("nowhere",), "calibrate-run", "nowhere holds no run"),
        (("measure=true", "cluster.hosts=2"), "calibrate-measure", "has others"),
        (("measure=true", "offload.nvme_path=/nowhere"), "calibrate-measure", "/nowhere is not a folder"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(words: tuple[str, ...], rule: str, told: str, tmp_path: Path) -> None:
    ended = orchestrator("calibrate", *words, "output=json", cwd=tmp_path)
    assert ended.code == 2, ended.everything
    (finding,) = ended.json["findings"]
    assert finding["rule"] == rule
    assert told in finding["message"]
    assert finding["fix"]
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", seconds=[0.1] * 6)
    (tmp_path / "again").symlink_to("run")
    assert [str(run.path.name) for run in read_runs([str(tmp_path / "run"), str(tmp_path / "again")])] == ["run"]


def test_runs_that_do_not_serve_are_named_all_at_once(tmp_path: Path) -> None:
    finished_run(tmp_path / "good", seconds=[0.1] * 6)
    finished_run(tmp_path / "running", seconds=[0.1] * 6, ended=False)
    finished_run(tmp_path / "short", seconds=[0.1] * 4)
    finished_run(tmp_path / "elsewhere", seconds=[0.1] * 6, stack={**STACK, "device": "Other CPU"})
    finished_run(tmp_path / "timeless", seconds=[0.0] * 6)
    finished_run(tmp_path / "odd", seconds=[0.1] * 6, stack={**STACK, "threads": "many"})
    (finished_run(tmp_path / "listed", seconds=[0.1] * 6) / "result.json").write_text("[]")
    names = ("good", "running", "short", "elsewhere", "timeless", "odd", "listed")
    ended = orchestrator("calibrate", *names, "output=json", cwd=tmp_path)
    assert ended.code == 2, ended.everything
    told = {finding["rule"]: finding["message"] for finding in ended.json["findings"]}
    messages = " ".join(finding["message"] for finding in ended.json["findings"])
    assert "running: no attempt has ended well" in messages
    assert "short" in messages and "too few" in messages
    assert "Test CPU and Other CPU" in told["calibrate-mixed"]
    for damaged in ("timeless", "odd", "listed"):
        assert f"{damaged}/attempts/1 is damaged" in messages
    assert not (tmp_path / "conf.d").exists()


@pytest.mark.parametrize(
    ("word", "field"),
    [("calibration.name=a/b", "calibration.name"), ("calibration.file=mine.yaml", "calibration.file")],
)
def test_a_preset_goes_where_hydra_finds_it(word: str, field: str, tmp_path: Path) -> None:
    finished_run(tmp_path / "run", seconds=[0.1] * 6)
    ended = orchestrator("calibrate", "run", word, "output=json", cwd=tmp_path)
    assert ended.code == 2, ended.everything
    assert ended.json["findings"][0]["field"] == field


def test_a_preset_that_is_no_calibration_is_not_overwritten(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", seconds=[0.1] * 6)
    preset = tmp_path / "conf.d" / "cluster" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("name: mine\n")
    ended = orchestrator("calibrate", "run", "calibration.name=mine", cwd=tmp_path)
    assert ended.code == 2, ended.everything
    assert preset.read_text() == "name: mine\n"
