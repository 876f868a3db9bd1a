"""What the last evaluation of a run does to its checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.worker import loop
from orchestrator.worker.checkpoint import Position


def test_the_checkpoint_that_a_run_was_resumed_from_learns_its_loss_and_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was left to train: a save would remove it first, and it may be the only one."""
    attempt = SimpleNamespace(resume_tag="global_step5", checkpoint_dir=tmp_path)
    evaluations = SimpleNamespace(measure=lambda _step: True, loss_at=lambda _step: 1.25)
    noted: list[Any] = []
    monkeypatch.setattr(loop, "add_held_out_loss", lambda *words: noted.append(words))
    monkeypatch.setattr(loop, "_save", lambda *_: pytest.fail("it is written again"))
    training: Any = SimpleNamespace(attempt=attempt)
    assert loop._evaluate_at_end(training, Position(step=5), evaluations, None) is None  # type: ignore[arg-type]
    assert noted == [(attempt, tmp_path / "global_step5", 1.25)]
