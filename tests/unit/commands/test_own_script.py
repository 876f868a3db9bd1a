"""A training script of the user's own, looked at before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands.own_script import script_findings
from tests.unit.planning.configurations import run_config


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "does not exist"),
        (b"", "is a folder"),
        (b"if True\n    pass\n", "is not Python: line 1"),
        (b"\x00\x01", "is not Python"),
        (b"print('\xff')", "is not Python"),
    ],
    ids=["missing", "a folder", "a syntax error", "binary", "not UTF-8"],
)
def test_what_cannot_be_run_is_told(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "train.py"
    if content:
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    (finding,) = script_findings(run_config(training__script=str(path)))
    assert (finding.field, finding.severity) == ("training.script", "error")
    assert f"{path} {told}" in finding.message


def test_a_script_and_no_script_are_sound(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    assert script_findings(run_config(training__script=str(tmp_path / "train.py"))) == []
    assert script_findings(run_config()) == []
