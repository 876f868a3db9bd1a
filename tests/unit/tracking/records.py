"""Attempts to be recorded without a training, and what W&B wrote of them, read by its own reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.commands.launch import run_contents
from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.run_dir import METRICS, Attempt, CommandWords, newest_attempt, read_json, resume_run, start_run
from orchestrator.tracking.description import describe, tracking_config
from orchestrator.tracking.recorder import RecorderTracker

ACCOUNT = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH")


def new_attempt(run_dir: Path, *overrides: str, wandb_id: str | None = None) -> Attempt:
    """The first attempt of a run of ``experiment=smoke``, or its next."""
    config = load_config(["experiment=smoke", *overrides, f"run_dir={run_dir}"])
    contents = run_contents(config, plan_run(config), CommandWords())
    if newest_attempt(run_dir) is None:
        return start_run(run_dir, contents, wandb_id=wandb_id)
    return resume_run(run_dir, contents, resume_tag="global_step3")


def write_metrics(attempt: Attempt, entries: Iterable[Mapping[str, Any]]) -> None:
    with (attempt.path / METRICS).open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def train_entry(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": loss, "step_seconds": 0.5, "tokens_per_second": 64.0, "time": 1.8e9 + step}


def evaluate_entry(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "evaluate", "step": step, "held_out_loss": loss, "time": 1.8e9 + step + 0.5}


class Recorder:
    """A recorder of an attempt, started as a rank does, and what it said."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.description = describe(attempt.path)
        self._said = attempt.path / "said.txt"
        run_id = read_json(attempt.path / "attempt.json")["wandb_id"]
        self.tracker = RecorderTracker(
            tracking_config(self.description.config), run_id=run_id, say=self._say, waits=lambda: None
        )

    def start(self) -> None:
        """Start it, with this process's standard output in a file."""
        own = os.dup(1)
        with self._said.open("wb") as file:
            os.dup2(file.fileno(), 1)
        try:
            self.tracker.start(self.description)
        finally:
            os.dup2(own, 1)
            os.close(own)

    def finish(self, *, failed: bool = False, **summary: float) -> None:
        self.tracker.summary(summary)
        self.tracker.finish(failed=failed)

    def lose_rank(self) -> None:
        """End as a recorder does whose rank is killed."""
        process = self.tracker._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        process.wait()

    @property
    def lines(self) -> list[str]:
        return self._said.read_text().splitlines()

    def _say(self, text: str) -> None:
        with self._said.open("a") as file:
            file.write(text + "\n")


def inspected(directory: str | Path) -> dict[str, list[dict[str, Any]]]:
    """What ``wandb leet inspect --json`` shows of a run's folder, by kind."""
    (path,) = Path(directory).glob("*.wandb")
    program = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(path)]
    with tempfile.TemporaryDirectory() as temporary:
        # W&B's program leaves its temporary folders behind
        environment = {**os.environ, "TMPDIR": temporary}
        shown = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True, env=environment).stdout
    records: dict[str, list[dict[str, Any]]] = {}
    for line in shown.splitlines():
        record = json.loads(line)
        records.setdefault(record["type"], []).append(record[record["type"]])
    return records


def history(records: Mapping[str, list[dict[str, Any]]], name: str) -> list[Any]:
    """The values of a metric in their order."""
    return [entry["item"][name] for entry in records.get("history", []) if name in entry["item"]]


def summary(records: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What the summary holds in the end."""
    values: dict[str, Any] = {}
    for entry in records["summary"]:
        values |= entry.get("update", {})
    return values
