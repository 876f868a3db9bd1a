"""Which checkpoint of a run is exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.checkpoints.catalogue import record_held_out_loss, write_manifest
from orchestrator.commands import export
from orchestrator.config.load import load_config
from orchestrator.errors import ConfigurationError
from orchestrator.run_dir import checkpoint_dir
from tests.finished_run import finished_run
from tests.unit.checkpoints.test_catalogue import MANIFEST


def exported(run_dir: Path, tag: str) -> str:
    config = load_config(["command=export", f"run_dir={run_dir}", f"export.tag={tag}"])
    return export.prepare(config).checkpoint.tag


def test_the_best_one_by_that_word(tmp_path: Path) -> None:
    finished_run(tmp_path / "run", seconds=[0.1])
    folders = {step: checkpoint_dir(tmp_path / "run") / f"global_step{step}" for step in (5, 10, 15)}
    for step, folder in folders.items():
        folder.mkdir()
        write_manifest(folder, replace(MANIFEST, step=step))
    with pytest.raises(ConfigurationError, match="has a held-out loss"):
        exported(tmp_path / "run", "best")
    for step, loss in ((5, 2.0), (10, 1.0), (15, 1.5)):
        record_held_out_loss(folders[step], loss)
    assert exported(tmp_path / "run", "best") == "global_step10"
    assert exported(tmp_path / "run", "null") == "global_step15"
