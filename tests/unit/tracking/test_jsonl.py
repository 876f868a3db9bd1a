"""``metrics.jsonl``."""

from __future__ import annotations

import json
import math

from orchestrator.tracking.jsonl import JsonlTracker
from orchestrator.tracking.tracker import RunDescription


def test_a_line_is_readable_while_the_run_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.start(RunDescription(run_name="run", attempt_dir=tmp_path, config={}, plan={}, ds_config={}))
    for step in (1, 2):
        tracker.log({"kind": "train", "step": step, "loss": 1 / step})
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, step + 1))
    tracker.finish(failed=False)


def test_numbers_that_json_cannot_write_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.start(RunDescription(run_name="run", attempt_dir=tmp_path, config={}, plan={}, ds_config={}))
    tracker.log({"kind": "train", "step": 1, "loss": math.nan, "grad_norm": math.inf})
    tracker.finish(failed=True)
    assert path.read_text() == '{"kind": "train", "step": 1, "loss": null, "grad_norm": null}\n'
