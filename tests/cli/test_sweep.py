"""Sweeps for real: every point through DeepSpeed's launcher, one rank each; a shell line makes one of them crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sweep_point import PointStatus, read_points
from tests.cli.command_line import orchestrator

NINE = """# @package _global_
# ZeRO-3 with micro-batches of 4 gets a device that is too small, ZeRO-2 with 2 an accelerator that does not exist.
defaults:
  - override /checkpoint: none
  - override /preflight: none
model:
  num_hidden_layers: 1
training:
  train_batch_size: 4
  max_steps: 2
  evaluate_sequences: 4
cluster:
  devices_per_host: 1
  device_memory_gib: ${oc.decode:${oc.select:launcher.environment.${launcher.environment.POINT},null}}
launcher:
  environment:
    POINT: P${zero.stage}${training.train_micro_batch_size_per_gpu}
    P34: "0.1"
  setup:
    - test $POINT != P22 || export DS_ACCELERATOR=none
"""
GRID = ("zero=stage1,stage2,stage3", "training.train_micro_batch_size_per_gpu=1,2,4")


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """What all sweeps here begin with."""
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "nine.yaml").write_text(NINE)
    return "launch", "-m", "--config-dir", str(tmp_path / "conf"), "experiment=smoke", "hydra.sweep.dir=sweep"


def counts(report: dict[str, Any]) -> dict[str, int]:
    return {status: count for status, count in report["counts"].items() if count}


def test_nine_points_killed_half_way_and_resumed(tmp_path: Path, words: tuple[str, ...]) -> None:
    sweep = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words, "sweep=nine", *GRID],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    progress = tmp_path / "sweep" / "3" / "attempts" / "1" / "launcher.log"
    deadline = time.monotonic() + 400
    while not progress.exists():
        assert time.monotonic() < deadline and sweep.poll() is None
        time.sleep(0.1)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.wait()
    before = read_points(tmp_path / "sweep")
    assert [point.status for point in before.values()] == [PointStatus.finished] * 3 + [PointStatus.running]
    resumed = orchestrator(
        "launch", "-m", "sweep.resume=true", "hydra.sweep.dir=sweep", "output=json", cwd=tmp_path, timeout=550
    )
    assert resumed.code == 4, resumed.everything
    assert counts(resumed.json) == {"finished": 7, "infeasible": 1, "failed": 1}
    after = read_points(tmp_path / "sweep")
    assert [path.name for path in after] == [str(number) for number in range(9)]
    assert list(after.items())[:3] == list(before.items())[:3], "what was finished is as it was"
    reasons = {point.status: point.reason for point in after.values() if point.reason}
    assert "102.40 MiB of CPU" in str(reasons[PointStatus.infeasible])
    assert "DS_ACCELERATOR" in str(reasons[PointStatus.failed])
    assert not (tmp_path / "sweep" / "8" / "attempts").exists()
    ports = [json.loads(path.read_text())["master_port"] for path in (tmp_path / "sweep").glob("*/attempts/*/command.json")]
    assert len(set(ports)) == len(ports) == 9


def test_optuna_with_points_side_by_side(tmp_path: Path, words: tuple[str, ...]) -> None:
    optuna = pytest.importorskip("optuna")
    study = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.study_name=sweep")
    storage = f"sqlite:///{tmp_path}/optuna.db"
    grid = ("zero=stage2,stage3", "training.train_micro_batch_size_per_gpu=2,4")
    ended = orchestrator(
        *words, "sweep=nine", *study, f"hydra.sweeper.storage={storage}", "hydra/launcher=joblib", *grid, "output=json",
        cwd=tmp_path, timeout=500,
    )  # fmt: skip
    assert ended.code == 4, ended.everything
    assert counts(ended.json) == {"finished": 2, "infeasible": 1, "failed": 1}
    trials = optuna.load_study(study_name="sweep", storage=storage).trials
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": 2, "FAIL": 2}
    reasons = {trial.user_attrs["status"]: trial.user_attrs["reason"] for trial in trials if trial.state.name == "FAIL"}
    assert reasons.keys() == {"infeasible", "failed"}
    best = min(point["metric"] for point in ended.json["points"] if point["metric"] is not None)
    assert ended.json["points"][ended.json["best"]]["metric"] == best


def test_submitit_starts_each_point_in_a_process_of_its_own(tmp_path: Path, words: tuple[str, ...]) -> None:
    pytest.importorskip("submitit")
    choices = ("sweep=nine", "hydra/launcher=submitit_local", "zero=stage2", "training.train_micro_batch_size_per_gpu=2,4")
    ended = orchestrator(*words, *choices, "output=json", cwd=tmp_path, timeout=300)
    assert ended.code == 4, ended.everything
    assert counts(ended.json) == {"finished": 1, "failed": 1}


def test_a_preview_is_one_table_or_one_object(tmp_path: Path, words: tuple[str, ...]) -> None:
    preview = ("validate", *words[1:-1], "sweep=nine", *GRID)
    shown = orchestrator(*preview, cwd=tmp_path, watched=True)
    assert shown.code == 0, shown.everything
    assert "8 of 9 points can run" in shown.stdout
    assert "STARTED A PROCESS" not in shown.stderr
    ended = orchestrator(*preview, "output=json", cwd=tmp_path)
    points = ended.json["points"]
    assert [point["verdict"] for point in points] == ["feasible"] * 8 + ["infeasible"]
    assert "102.40 MiB of CPU" in points[8]["reason"]
    assert points[0]["memory"].keys() == {"device_bytes", "device_capacity_bytes", "host_bytes", "host_capacity_bytes"}
    assert [path.name for path in tmp_path.iterdir()] == ["conf"]


def test_a_refused_sweep_is_one_object_and_leaves_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = orchestrator(*words, "zero=stage1,stage2", "run_dir=here", "output=json", cwd=tmp_path)
    assert ended.code == 2
    assert [finding["field"] for finding in ended.json["findings"]] == ["run_dir"]
    assert [path.name for path in tmp_path.iterdir()] == ["conf"]
