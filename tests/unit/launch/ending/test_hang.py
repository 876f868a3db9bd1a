"""When a run counts as silent, and when it has something to save."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.launch.ending.hang import ProgressWatch
from orchestrator.presence import Phase, ProgressWriter


@pytest.mark.parametrize(
    ("phase", "step", "silent", "saves"),
    [
        (Phase.train, 3, 50.0, True),
        (Phase.build, 0, 50.0, False),
        (Phase.script, 0, 0.0, False),
        (Phase.script, 3, 50.0, False),
    ],
    ids=["training", "building", "a script that has reported nothing", "a script that reports"],
)
def test_a_script_is_judged_by_its_reports(tmp_path: Path, phase: Phase, step: int, silent: float, saves: bool) -> None:
    now = 100.0
    watch = ProgressWatch(tmp_path, clock=lambda: now)
    ProgressWriter(tmp_path).advance(phase, step=step)
    watch.look()
    now = 150.0
    watch.look()
    assert watch.silent_seconds == silent
    assert watch.has_begun_training == saves
