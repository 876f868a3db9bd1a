"""The receipt of a finished run: what was predicted of its memory and its steps, and what they took."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from orchestrator.commands.finished_runs import steady_seconds
from orchestrator.commands.result import CommandResult
from orchestrator.report.receipt import ClassOfRanks, StepSeconds, receipt_report
from orchestrator.run_dir import Attempt, read_json

TOLERANCE = 0.2
"""A step that is further from its prediction, as a share of it, asks for a calibration."""


def with_receipt(result: CommandResult, attempt: Attempt) -> CommandResult:
    """``result`` of an attempt that ended well, with its receipt."""
    plan, outcome = read_json(attempt.path / "plan.json"), attempt.result
    assert outcome is not None
    classes = tuple(_classes(plan, outcome["memory"]["ranks"]))
    step = _step_seconds(plan, attempt)
    offer = f"orchestrator calibrate {shlex.quote(str(attempt.run_dir))}" if is_off(step) else None
    receipt = {
        "ranks": [asdict(entry) for entry in classes],
        "step": {**asdict(step), "error": step.error},
        "calibrate": offer,
    }
    text = [*result.text, *receipt_report(classes, step, offer)]
    return replace(result, payload={**result.payload, "receipt": receipt}, text=text)


def is_off(step: StepSeconds) -> bool:
    """Whether the step was more than ``TOLERANCE`` from what was predicted."""
    return step.error is not None and abs(step.error) > TOLERANCE


def _classes(plan: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> Iterator[ClassOfRanks]:
    """The classes of equal ranks, each with its fullest."""
    for entry in plan["memory"]["device"]:
        own = [rank for rank in ranks if rank["rank"] in entry["ranks"]]
        if own:
            fullest = max(own, key=lambda rank: int(rank["measured_bytes"]))
            yield ClassOfRanks(
                stage=entry["stage"],
                ranks=tuple(rank["rank"] for rank in own),
                predicted_bytes=fullest["predicted_bytes"],
                measured_bytes=fullest["measured_bytes"],
            )


def _step_seconds(plan: Mapping[str, Any], attempt: Attempt) -> StepSeconds:
    log_every = read_json(attempt.path / "config.json")["training"]["log_every"]
    seconds = steady_seconds(attempt, log_every)
    predicted = plan.get("time")
    return StepSeconds(
        predicted=None if predicted is None else predicted["step_seconds"],
        measured=float(np.median(seconds)) if len(seconds) else None,
        unknown=plan.get("time_unknown"),
    )
