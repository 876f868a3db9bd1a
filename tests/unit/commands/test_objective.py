"""The objective of a run: which value it is, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.objective import ObjectiveError, objective


def run_of(run_dir: Path, *attempts: tuple[list[dict[str, Any]], dict[str, Any] | None]) -> Path:
    """A run whose attempts left these metrics and results."""
    for number, (entries, result) in enumerate(attempts, start=1):
        attempt = run_dir / "attempts" / str(number)
        attempt.mkdir(parents=True)
        (attempt / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"kind": "tra')
        if result is not None:
            (attempt / "result.json").write_text(json.dumps(result))
    return run_dir


ENTRIES = [
    {"kind": "train", "step": 1, "loss": 3.0, "lr": 0.1},
    {"kind": "evaluate", "step": 1, "held_out_loss/code": 4.0, "time": 5.0},
    {"kind": "train", "step": 2, "loss": 2.0, "lr": 0.2},
]


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (None, ("held_out_loss", 2.5)),
        ("loss", ("loss", 2.0)),
        ("held_out_loss/code", ("held_out_loss/code", 4.0)),
        ("tokens_per_second", ("tokens_per_second", 9.0)),
        ("memory/measured_bytes", ("memory/measured_bytes", 7.0)),
    ],
)
def test_a_value_of_the_result_or_the_last_of_the_metrics(tmp_path: Path, metric: str | None, found: tuple[str, float]) -> None:
    result = {"status": "completed", "held_out_loss": 2.5, "tokens_per_second": 9, "memory": {"measured_bytes": 7}}
    assert objective(run_of(tmp_path, (ENTRIES, result)), metric) == found


def test_without_a_held_out_part_the_last_loss_counts(tmp_path: Path) -> None:
    assert objective(run_of(tmp_path, (ENTRIES, {"held_out_loss": None})), None) == ("loss", 2.0)


def test_the_newest_attempt_counts(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, (ENTRIES, {"held_out_loss": 3.0}), (ENTRIES[:1], {"held_out_loss": 1.0}))
    assert objective(run_dir, None) == ("held_out_loss", 1.0)
    assert objective(run_dir, "loss") == ("loss", 3.0)


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("losss", "did you mean loss\\? it has: .*held_out_loss/code, loss, lr"),
        ("step", "no value 'step'"),
        ("bad", "bad is inf"),
    ],
)
def test_a_missing_or_infinite_one_is_said(tmp_path: Path, metric: str, told: str) -> None:
    with pytest.raises(ObjectiveError, match=told):
        objective(run_of(tmp_path, (ENTRIES, {"bad": float("inf")})), metric)


@pytest.mark.parametrize("metric", [None, "held_out_loss"])
def test_a_run_that_diverged_has_no_objective_though_it_had_a_number_before(tmp_path: Path, metric: str | None) -> None:
    entries = [{"kind": "evaluate", "step": step, "held_out_loss": loss} for step, loss in ((1, 2.0), (2, None))]
    with pytest.raises(ObjectiveError, match="held_out_loss is nan, which is no objective"):
        objective(run_of(tmp_path, (entries, {"held_out_loss": None})), metric)


def test_a_skipped_step_is_no_divergence(tmp_path: Path) -> None:
    skipped = {"kind": "train", "step": 3, "loss": None, "skipped": True}
    assert objective(run_of(tmp_path, ([*ENTRIES, skipped], {})), "loss") == ("loss", 2.0)
