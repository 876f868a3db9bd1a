"""A user's own script in one process of an attempt: it runs as under ``python train.py``, and what is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator import script
from orchestrator.commands.launch import run_contents
from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.run_dir import RESULT, Attempt, CommandWords, read_json, start_run
from orchestrator.worker.script_launch import entry_of_log

SEES = """
import json, os, sys
from pathlib import Path
import models
from orchestrator import script
run = script.this_run()
seen = {
    "name": __name__, "file": __file__, "arguments": sys.argv, "cwd": os.getcwd(), "path": sys.path[0], "models": models.WHOSE,
    "output_dir": os.environ["ORCHESTRATOR_OUTPUT_DIR"], "json": json.loads(run.ds_config.read_text())["train_batch_size"],
    "accelerate": os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"], "torch": "torch" in sys.modules,
}
(run.output_dir / "seen.json").write_text(json.dumps(seen))
"""


def attempt_of(folder: Path, source: str, *arguments: str) -> Attempt:
    """An attempt of one rank at ``train.py`` in a project of the user's, launched from beside it."""
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(source)
    (project / "models.py").write_text("WHOSE = 'the user'\n")
    words = ("experiment=smoke", "cluster.devices_per_host=1", f"training.script={project / 'train.py'}")
    config = load_config([*words, f"run_dir={folder / 'run'}"])
    config.training.script_arguments = list(arguments)
    return start_run(folder / "run", run_contents(config, plan_run(config), CommandWords()))


def run_script(attempt: Attempt) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "orchestrator.worker.script", str(attempt.path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def failure(attempt: Attempt) -> dict[str, Any]:
    return read_json(attempt.path / "failure_rank_0.json")


def test_it_sees_what_it_would_see_alone_and_its_arguments_filled_in(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, SEES, "--deepspeed", "{ds_config}", "--steps={max_steps}", '{"a": 1}')
    ended = run_script(attempt)
    assert ended.returncode == 0, ended.stderr
    project, ds_config = tmp_path / "project", str(attempt.path / "ds_config.json")
    assert read_json(tmp_path / "run" / "output" / "seen.json") == {
        "name": "__main__",
        "file": str(project / "train.py"),
        "arguments": [str(project / "train.py"), "--deepspeed", ds_config, "--steps=5", '{"a": 1}'],
        "cwd": str(Path.cwd()),
        "path": str(project),
        "models": "the user",
        "output_dir": str(tmp_path / "run" / "output"),
        "json": 8,
        "accelerate": ds_config,
        "torch": False,
    }
    assert read_json(tmp_path / "run" / "request" / "script.json")["arguments"][1] == "{ds_config}"


def test_what_it_reports_becomes_metrics_and_the_result(tmp_path: Path) -> None:
    source = """
import atexit
from orchestrator import script
atexit.register(print, "goodbye")
for step in (1, 2):
    script.report(step=step, loss=4.0 / step, accuracy=0.5, note=None)
script.report_evaluation(step=2, held_out_loss=2.5)
script.report_checkpoint("/somewhere")
"""
    attempt = attempt_of(tmp_path, source)
    ended = run_script(attempt)
    assert ended.returncode == 0, ended.stderr
    assert "goodbye" in ended.stdout
    assert "[orchestrator] step 2/5  loss 2  accuracy 0.5" in ended.stdout
    entries = [json.loads(line) for line in (attempt.path / "metrics.jsonl").read_text().splitlines()]
    assert [(entry["kind"], entry["step"]) for entry in entries] == [("train", 1), ("train", 2), ("evaluate", 2)]
    assert "step_seconds" not in entries[0], "the time of the start is no step's"
    assert entries[1]["loss"] == 2.0 and entries[1]["step_seconds"] >= 0
    assert entries[2]["perplexity"] == pytest.approx(12.1825, abs=1e-3)
    result = read_json(attempt.path / RESULT)
    assert (result["status"], result["steps"], result["metric"], result["final_loss"]) == ("completed", 2, 2.5, 2.0)
    assert result["checkpoint"] == "/somewhere"
    assert result["memory"]["measured_bytes"] > 0


def test_a_trainers_history_is_read_where_nothing_was_reported(tmp_path: Path) -> None:
    source = """
import json, os
history = [{"loss": 3.0, "learning_rate": 0.1, "step": 1}, {"eval_loss": 2.0, "step": 1}, {"train_runtime": 9.0, "step": 1}]
with open(os.environ["ORCHESTRATOR_OUTPUT_DIR"] + "/trainer_state.json", "w") as file:
    json.dump({"log_history": history}, file)
"""
    attempt = attempt_of(tmp_path, source)
    assert run_script(attempt).returncode == 0
    assert read_json(attempt.path / RESULT)["metric"] == 2.0


def test_a_broken_history_does_not_make_a_failure_of_a_training_that_ended_well(tmp_path: Path) -> None:
    source = 'import os; open(os.environ["ORCHESTRATOR_OUTPUT_DIR"] + "/trainer_state.json", "w").write("{cut")'
    attempt = attempt_of(tmp_path, source)
    ended = run_script(attempt)
    assert ended.returncode == 0, ended.stderr
    assert "trainer_state.json cannot be read" in ended.stdout
    assert read_json(attempt.path / RESULT)["status"] == "completed"


@pytest.mark.parametrize(
    ("logged", "entry"),
    [
        ({"loss": 3.0, "learning_rate": 0.1, "time": 5.0}, ("train", {"loss": 3.0, "lr": 0.1})),
        (
            {"eval_loss": 2.0, "eval_runtime": 4.0, "eval_aux_loss": 1.0, "eval_time": 9.0, "epoch": 0.5},
            ("evaluate", {"held_out_loss": 2.0, "seconds": 4.0, "aux_loss": 1.0, "eval_time": 9.0, "epoch": 0.5}),
        ),
        (
            {"eval_my_code_loss": 2.0, "eval_my_code_runtime": 4.0, "eval_my_code_aux_loss": 1.0, "epoch": 0.5},
            ("evaluate", {"held_out_loss/my_code": 2.0, "seconds/my_code": 4.0, "aux_loss/my_code": 1.0, "epoch": 0.5}),
        ),
        ({"train_loss": 2.0, "train_runtime": 4.0}, ("train", {})),
    ],
)
def test_what_a_trainer_logs_has_our_names(logged: dict[str, float], entry: tuple[str, dict[str, float]]) -> None:
    assert entry_of_log({**logged, "step": 7}) == entry


def test_a_step_is_a_whole_number_of_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(script, "_launch", SimpleNamespace(report=lambda _kind, step, _values: steps.append(step)))
    script.report(step=np.int64(3), loss=1.0)  # type: ignore[arg-type]
    assert json.dumps(steps) == "[3]"
    with pytest.raises(TypeError, match=r"step=2.5 is no whole number"):
        script.report(step=2.5, loss=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "code", "error"),
    [
        ("raise KeyError('x')", 1, "KeyError: 'x'"),
        ("import sys; sys.exit(7)", 7, "the script left with exit code 7"),
        ("import sys; sys.exit('no data')", 1, "the script left with exit code 1: no data"),
        ("from orchestrator import script; script.report(step=1, loss='low')", 1, "TypeError: loss='low' is no number"),
    ],
)
def test_how_it_fails_is_kept_with_its_own_lines_only(tmp_path: Path, source: str, code: int, error: str) -> None:
    attempt = attempt_of(tmp_path, f"def work():\n    {source}\nwork()\n")
    ended = run_script(attempt)
    assert ended.returncode == code, ended.stderr
    assert failure(attempt)["error"] == error
    assert failure(attempt)["traceback"].splitlines()[1].endswith('project/train.py", line 3, in <module>')
    assert not (attempt.path / RESULT).exists()


@pytest.mark.parametrize("source", ["import sys; sys.exit()", "raise SystemExit(0)"])
def test_leaving_with_zero_is_a_good_end(tmp_path: Path, source: str) -> None:
    attempt = attempt_of(tmp_path, source)
    assert run_script(attempt).returncode == 0
    assert read_json(attempt.path / RESULT)["status"] == "completed"


def test_alone_it_reports_nothing_and_goes_on() -> None:
    assert script.this_run() is None
    script.report(step=1, loss=1.0)
    assert not script.should_stop()
    with pytest.raises(RuntimeError, match="in a launch only"):
        script.lr_scheduler(None)
