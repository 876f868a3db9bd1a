"""``status``, ``logs`` and ``stop`` beside a real launch."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.presence import read_progress
from tests.cli.command_line import orchestrator

SMOKE = ("experiment=smoke", "training.max_steps=1000000", "training.log_every=20", "checkpoint.save_every=0")


def test_a_run_is_looked_at_and_stopped_from_another_shell(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = [sys.executable, "-m", "orchestrator", "launch", *SMOKE, f"run_dir={run_dir}"]
    launch = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 240
        while (progress := read_progress(run_dir / "attempts" / "1")) is None or progress.step < 100:
            assert launch.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        looked = orchestrator("status", str(run_dir), "output=json", cwd=tmp_path, watched=True)
        assert looked.code == 0, looked.everything
        assert "STARTED A PROCESS" not in looked.stderr
        assert (looked.json["state"], looked.json["phase"]) == ("running", "train")
        assert looked.json["step"] >= 100
        assert looked.json["remaining_seconds"] > 0
        assert looked.json["hosts"] == [{"host": "localhost", "ranks": [0, 1], "started": 2, "exit_code": None}]
        shown = orchestrator("logs", str(run_dir), "rank=0", "last=3", cwd=tmp_path)
        assert [line.count("[orchestrator] step") for line in shown.stdout.splitlines()] == [1, 1, 1]
        stopped = orchestrator("stop", str(run_dir), "output=json", cwd=tmp_path)
        assert stopped.code == 0, stopped.everything
        assert stopped.json["state"] == "stopped"
        assert stopped.json["saved"] == str(run_dir / "checkpoints" / f"global_step{stopped.json['step']}")
        launch.communicate(timeout=180)
        assert launch.returncode == 130
    finally:
        launch.send_signal(signal.SIGKILL)
        launch.wait()
    after = orchestrator("status", str(run_dir), cwd=tmp_path)
    assert after.code == 0
    assert "stopped: step" in after.stdout


@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
def test_without_a_run_they_say_so(verb: str, tmp_path: Path) -> None:
    ended = orchestrator(verb, "output=json", cwd=tmp_path)
    assert ended.code == 2
    (finding,) = ended.json["findings"]
    assert finding["rule"] == "run"
    assert not list(tmp_path.iterdir())
