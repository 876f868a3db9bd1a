"""Run directories as a finished run leaves them, without training anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.commands.launch import run_contents
from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.run_dir import METRICS, RESULT, CommandWords, start_run, write_json

STACK = {"device": "Test CPU", "threads": 1, "cores": 2, "torch": "2.9.0", "deepspeed": "0.19.8"}


def finished_run(
    run_dir: Path,
    *overrides: str,
    seconds: Sequence[float],
    stack: dict[str, Any] | None = None,
    ended: bool = True,
    measured_bytes: int = 10**9,
) -> Path:
    """A run of ``experiment=smoke`` whose steps took ``seconds``; ``ended``: whether it left a result. Returns its attempt."""
    config = load_config(["experiment=smoke", *overrides, f"run_dir={run_dir}"])
    plan = plan_run(config)
    assert plan.fits, plan.findings
    assert plan.layout is not None
    attempt = start_run(run_dir, run_contents(config, plan, CommandWords()))
    entries = [
        {"kind": "train", "step": step, "step_seconds": value, "loss": 1.0} for step, value in enumerate(seconds, start=1)
    ]
    (attempt.path / METRICS).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if ended:
        ranks = [
            {"rank": rank, "predicted_bytes": 2 * measured_bytes, "measured_bytes": measured_bytes + rank}
            for rank in range(plan.layout.world_size)
        ]
        write_json(attempt.path / RESULT, {"status": "completed", "memory": {"ranks": ranks}, "stack": stack or STACK})
    return attempt.path
