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


def test_a_checkpoint_that_grows_is_progress(tmp_path: Path) -> None:
    """Of hundreds of GB on a slow disk: rank 0 itself shows nothing while it saves."""
    attempt, tag_dir = tmp_path / "attempts" / "1", tmp_path / "checkpoints" / "global_step7"
    for folder in (attempt, tag_dir):
        folder.mkdir(parents=True)
    now = 0.0
    watch = ProgressWatch(attempt, clock=lambda: now)
    ProgressWriter(attempt).advance(Phase.save, step=7)
    watch.look()
    silent = []
    for size in (10, 10, 20, 20):
        now += 1000.0
        (tag_dir / "weights.pt").write_bytes(b"." * size)
        watch.look()
        silent.append(watch.silent_seconds)
    assert silent == [1000.0, 2000.0, 0.0, 1000.0]
    # rank 0 saves no more: what lies there is no sign of life
    ProgressWriter(attempt).advance(Phase.train, step=7)
    watch.look()
    now += 1000.0
    (tag_dir / "weights.pt").write_bytes(b"." * 30)
    watch.look()
    assert watch.silent_seconds == 1000.0
