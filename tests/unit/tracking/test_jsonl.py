"""``metrics.jsonl``."""

from __future__ import annotations

import json
import math

from orchestrator.tracking.jsonl import JsonlTracker, MetricsReader
from orchestrator.tracking.tracker import RunDescription


def description(tmp_path):
    return RunDescription(run_name="run", run_dir=tmp_path, attempt=1, attempt_dir=tmp_path, config={}, plan={}, ds_config={})


def test_a_line_is_readable_while_the_run_goes_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.start(description(tmp_path))
    for step in (1, 2):
        tracker.log({"kind": "train", "step": step, "loss": 1 / step})
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, step + 1))
    tracker.finish(failed=False)


def test_numbers_that_json_cannot_write_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.start(description(tmp_path))
    tracker.log({"kind": "train", "step": 1, "loss": math.nan, "grad_norm": math.inf})
    tracker.finish(failed=True)
    assert path.read_text() == '{"kind": "train", "step": 1, "loss": null, "grad_norm": null}\n'


def test_a_reader_takes_whole_lines_only_and_each_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    assert list(reader.new()) == []
    whole, half = '{"kind": "train", "step": 1}\n', '{"kind": "train", "st'
    path.write_text(whole + "damaged\n" + half)
    assert [entry["step"] for entry in reader.new()] == [1]
    path.write_text(whole + "damaged\n" + half + 'ep": 2}\n')
    assert [entry["step"] for entry in reader.new()] == [2]
    assert list(reader.new()) == []
