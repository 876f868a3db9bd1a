"""What a finished run says of its own predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.commands.receipt import with_receipt
from orchestrator.commands.result import OK, CommandResult
from orchestrator.run_dir import Attempt
from tests.finished_run import finished_run


def receipt(path: Path, *, predicted: float | None, seconds: float = 0.5) -> CommandResult:
    """Of a run of two pipeline stages whose step was predicted to take ``predicted`` seconds."""
    attempt = finished_run(path / "my run", "parallelism.pipeline_parallel_size=2", seconds=[3.0, 2.0, *([seconds] * 4)])
    plan = json.loads((attempt / "plan.json").read_text())
    time = {"time": None if predicted is None else {"step_seconds": predicted}, "time_unknown": "not known of CPU"}
    (attempt / "plan.json").write_text(json.dumps({**plan, **time}))
    result = CommandResult(exit_code=OK, payload={"status": "completed"}, text=[])
    return with_receipt(result, Attempt(number=1, path=attempt, run_dir=path / "my run"))


def shown(result: CommandResult) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        for part in result.text:
            console.print(part, soft_wrap=True)
    return capture.get()


def test_memory_is_told_by_class_of_ranks_and_time_once(tmp_path: Path) -> None:
    result = receipt(tmp_path, predicted=0.45)
    found = result.payload["receipt"]
    assert [(entry["stage"], entry["ranks"]) for entry in found["ranks"]] == [(0, (0,)), (1, (1,))]
    assert [entry["measured_bytes"] for entry in found["ranks"]] == [10**9, 10**9 + 1]
    assert found["step"] == {"predicted": 0.45, "measured": 0.5, "unknown": "not known of CPU", "error": pytest.approx(1 / 9)}
    assert found["calibrate"] is None
    assert "calibrate" not in shown(result)
    assert "-50.0%" in shown(result)


@pytest.mark.parametrize(("predicted", "told"), [(0.3, "67% longer"), (1.0, "50% less")])
def test_a_step_far_off_offers_to_calibrate(predicted: float, told: str, tmp_path: Path) -> None:
    result = receipt(tmp_path, predicted=predicted)
    offer = f"orchestrator calibrate '{tmp_path / 'my run'}'"
    assert result.payload["receipt"]["calibrate"] == offer
    assert told in shown(result)
    assert offer in shown(result)


def test_without_a_prediction_the_receipt_says_why(tmp_path: Path) -> None:
    result = receipt(tmp_path, predicted=None)
    assert result.payload["receipt"]["step"]["measured"] == 0.5
    assert "not known of CPU" in shown(result)
