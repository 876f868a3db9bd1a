"""Training scripts of the user's own through the real launcher: what is refused, what runs, how it fails, stops and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command_line import Ended, orchestrator
from tests.cli.test_launch import metrics, processes_of

SCRIPTS = Path(__file__).parents[1] / "scripts"
SMOKE = ("experiment=smoke", "precision=fp32", "zero=stage2", "run_dir=run")


def launch(script: Path | str, *words: str, cwd: Path) -> Ended:
    return orchestrator("launch", *SMOKE, f"training.script={script}", *words, "output=json", cwd=cwd)


def test_a_trainer_script_gets_all_that_must_agree_with_the_json_as_one_argument(tmp_path: Path) -> None:
    words = "training.script_arguments=['{trainer_arguments}',--report_to,none,--save_strategy,'no']"
    ended = launch(SCRIPTS / "trainer.py", words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    result = ended.json["result"]
    entries = metrics(tmp_path / "run")
    assert [entry["step"] for entry in entries if entry["kind"] == "train"] == [1, 2, 3, 4, 5]
    (evaluated,) = [entry for entry in entries if entry["kind"] == "evaluate"]
    assert result["metric"] == evaluated["held_out_loss"]
    assert len(result["memory"]["ranks"]) == 2
    assert ended.json["receipt"]["ranks"][0]["measured_bytes"] > 0
    assert "step 5/5" in ended.stderr


def test_a_loop_written_by_hand_trains_with_the_json_and_the_schedule_of_the_run(tmp_path: Path) -> None:
    words = ("training.script_arguments=[--deepspeed_config,'{ds_config}']", "lr_scheduler.warmup_steps=4")
    ended = launch(SCRIPTS / "hand_written.py", *words, "tracking=wandb_offline", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert ended.json["result"]["wandb"]["mode"] == "offline"
    entries = [entry for entry in metrics(tmp_path / "run") if entry["kind"] == "train"]
    assert [entry["lr"] for entry in entries[:3]] == pytest.approx([5e-4, 1e-3, 1.5e-3])
    assert entries[-1]["loss"] < entries[0]["loss"]


def test_an_accelerate_script_finds_the_json_by_itself(tmp_path: Path) -> None:
    ended = launch(SCRIPTS / "accelerated.py", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    log = (tmp_path / "run" / "attempts" / "1" / "launcher.log").read_text()
    assert log.count("2 ranks, ZeRO stage 2") == 1


def test_a_rank_that_raises_is_named_with_the_lines_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "def read(record):\n"
        "    raise ValueError(f'record {record} is bad')\n"
        "if os.environ['RANK'] == '1':\n"
        "    read(7)\n"
        "time.sleep(600)\n"
    )
    ended = launch("train.py", cwd=tmp_path)
    assert ended.code == 4, ended.everything
    assert ended.json["reason"].endswith("ValueError: record 7 is bad")
    assert ended.json["first"]["rank"] == 1
    assert f'File "{tmp_path}/train.py", line 5, in <module>' in ended.json["lines"][1]
    explained = orchestrator("explain", "run", cwd=tmp_path)
    assert "record 7 is bad" in explained.stdout
    assert not processes_of(tmp_path / "run")


LISTENS = """
import os
import time
from orchestrator import script
run = script.this_run()
for step in range(1, 10000):
    script.report(step=step, loss=1.0 / step)
    if script.should_stop():
        if os.environ["RANK"] == "0":
            saved = run.output_dir / f"step{step}"
            saved.mkdir()
            script.report_checkpoint(saved)
        break
    if run.attempt == 2:
        break
    time.sleep(0.05)
"""


def test_a_script_that_listens_saves_when_it_is_stopped_and_goes_on_as_another_attempt(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (tmp_path / "train.py").write_text(LISTENS)
    words = [*SMOKE, "training.script=train.py", "launcher.hang_timeout=60"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "launch", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TEST_MARK": str(run_dir)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (run_dir / "attempts/1/metrics.jsonl").exists() or len(metrics(run_dir)) < 2:
        assert time.monotonic() < deadline
        assert launcher.poll() is None
        time.sleep(0.1)
    launcher.send_signal(signal.SIGINT)
    printed, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 130, printed
    (saved,) = (run_dir / "output").iterdir()
    assert f"saved: checkpoint {saved}" in printed
    assert not processes_of(run_dir)
    (tmp_path / "train.py").write_text(LISTENS + "\nprint('longer')\n")
    again = orchestrator("launch", "run_dir=run", "checkpoint.resume=true", "output=json", cwd=tmp_path)
    assert again.code == 0, again.everything
    assert "train.py is not what the run was started with" in again.stderr
    assert json.loads((run_dir / "attempts/2/attempt.json").read_text())["attempt"] == 2
    other = orchestrator("launch", "run_dir=run", "training.script=null", "checkpoint.resume=true", "output=json", cwd=tmp_path)
    assert other.code == 2
    assert other.json["findings"][0]["rule"] == "resume-script"


def test_what_cannot_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("if True\n    pass\n")
    ended = orchestrator("launch", *SMOKE, "training.script=train.py", "output=json", cwd=tmp_path, watched=True)
    assert ended.code == 2, ended.everything
    (finding,) = [finding for finding in ended.json["findings"] if finding["severity"] == "error"]
    assert (finding["rule"], finding["field"]) == ("script", "training.script")
    assert "is not Python: line 1" in finding["message"]
    assert "STARTED A PROCESS" not in ended.stderr
    assert not (tmp_path / "run").exists()
