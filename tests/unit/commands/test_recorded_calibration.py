"""Five recorded runs of a CPU predict the steps of eight other layouts that were recorded with them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from orchestrator.commands import calibrate
from orchestrator.commands.finished_runs import FIRST_STEPS
from orchestrator.config.load import load_config
from tests.benchmarks.calibration_accuracy import (
    COMMON,
    FITTED,
    MEDIAN_GATE,
    PREDICTED,
    WORST_GATE,
    predicted_seconds,
)
from tests.finished_run import STACK, finished_run

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "cpu_steps.json").read_text())
"""``calibration_accuracy`` on a quiet machine with two cores (AMD EPYC, torch 2.13, DeepSpeed 0.19.8)."""


def test_five_recorded_runs_predict_eight_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, words in FITTED.items():
        run = RECORDED[name]
        stack = {**STACK, "threads": run["threads"]}
        finished_run(tmp_path / name, *COMMON[1:], *words, seconds=run["step_seconds"], stack=stack)
    config = load_config(["experiment=smoke", "calibration.name=calibrated"])
    calibrate.run(config, [str(tmp_path / name) for name in FITTED], config_dir=tmp_path / "conf.d", echo=lambda _: None)
    errors = {}
    for name, words in PREDICTED.items():
        measured = median(RECORDED[name]["step_seconds"][FIRST_STEPS:])
        errors[name] = abs(predicted_seconds(words, tmp_path / "conf.d") / measured - 1)
    assert median(errors.values()) <= MEDIAN_GATE, errors
    assert max(errors.values()) <= WORST_GATE, errors
