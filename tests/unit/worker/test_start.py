"""How a rank starts: nothing that costs time and is not needed."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from orchestrator.config.enums import OptimizerType
from orchestrator.worker import start
from orchestrator.worker.muon import compiler_only_for_muon


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(start, "watch_lease", lambda *_, **__: None)


@pytest.mark.usefixtures("rank")
def test_what_the_imports_leave_is_not_collected_then_or_in_training(tmp_path: Path) -> None:
    seen = []
    frozen = gc.get_freeze_count()

    def load(_: Path) -> object:
        seen.append(gc.isenabled())
        return lambda *_, **__: seen.extend((gc.isenabled(), gc.get_freeze_count() > frozen))

    try:
        start._work(tmp_path, load)
    finally:
        gc.unfreeze()
    assert seen == [False, True, True]


@pytest.mark.parametrize("before", [None, "0"])
@pytest.mark.parametrize("optimizer", OptimizerType)
def test_only_muon_has_a_compiler(monkeypatch: pytest.MonkeyPatch, optimizer: OptimizerType, before: str | None) -> None:
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    if before is not None:
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", before)
    with compiler_only_for_muon(optimizer):
        assert os.environ.get("TORCHDYNAMO_DISABLE") == (before if optimizer is OptimizerType.Muon else "1")
    assert os.environ.get("TORCHDYNAMO_DISABLE") == before
