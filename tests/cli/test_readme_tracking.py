"""The README's section on tracking, followed to the letter."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().partition("### Tracking\n")[2].partition("\n### ")[0]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a reader who has no key and types the section's commands, and what each printed."""
    folder = tmp_path_factory.mktemp("reader")
    (block,) = re.findall(r"```sh\n(.*?)```", SECTION, flags=re.DOTALL)
    without = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {"HOME": str(folder), "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = []
    for line in block.splitlines():
        command = line.replace("orchestrator ", f"{shlex.quote(sys.executable)} -m orchestrator ", 1)
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout + done.stderr)
    return folder, printed


def test_the_launch_ends_with_the_command_that_uploads(typed: tuple[Path, list[str]]) -> None:
    folder, printed = typed
    (directory,) = (folder / "runs" / "tracked" / "attempts" / "1" / "wandb").glob("offline-run-*")
    assert f"W&B upload: wandb sync {directory}" in printed[0].replace("\n", "")
    assert "Would sync 1 run" in printed[2]


def test_everything_that_was_asked_for_has_every_loss(typed: tuple[Path, list[str]]) -> None:
    folder, printed = typed
    run_dir = folder / "runs" / "tracked"
    entries = [json.loads(line) for line in (run_dir / "attempts" / "1" / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries if entry["kind"] == "train"]
    assert losses
    shown = [json.loads(line) for line in printed[1].splitlines() if line.startswith("{")]
    logged = [record["history"]["item"] for record in shown if record["type"] == "history"]
    assert [item["train/loss"] for item in logged if "train/loss" in item] == pytest.approx(losses)
    header, *rows = [line.split(",") for line in (run_dir / "metrics.csv").read_text().splitlines()]
    column = header.index("loss")
    assert [float(row[column]) for row in rows if row[1] == "train"] == losses
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    scalars = events.EventAccumulator(str(run_dir / "tensorboard")).Reload().Scalars("train/loss")
    assert [event.value for event in scalars] == pytest.approx(losses)
    result = json.loads((run_dir / "attempts" / "1" / "result.json").read_text())
    summary: dict[str, float] = {}
    for record in shown:
        summary |= record["summary"].get("update", {}) if record["type"] == "summary" else {}
    assert summary["memory_bytes/measured"] == result["memory"]["measured_bytes"]
    assert summary["memory_bytes/predicted"] == result["memory"]["predicted_bytes"]
    assert {"step_seconds/measured", "final_loss", "best/train/loss"} <= summary.keys()


def test_the_file_for_wandb_sweeps_is_the_one_that_is_tried() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", SECTION, flags=re.DOTALL)
    assert shown == (ROOT / "tests" / "data" / "wandb_sweep.yaml").read_text()
