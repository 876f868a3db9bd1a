"""Data on the command line: what the README shows, and what a run says of data that it cannot use."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator
from tests.unit.tokens.written import write_folder

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def folder(tmp_path) -> Path:
    """The sources of the README's example, small."""
    documents = [[list(range(size)) for size in (300, 40, 700, 90) * 5]]
    write_folder(tmp_path / "library", documents)
    write_folder(tmp_path / "network", documents)
    write_folder(tmp_path / "sums", documents, answers=[[20] * 20])
    return tmp_path


def test_the_readme_s_example_counts_every_source(folder):
    (command,) = re.findall(r"^\$ orchestrator (validate data=mixture .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    ended = orchestrator(*shlex.split(command), cwd=folder)
    assert ended.code == 0, ended.everything
    for said in ("library", "sums", "evaluation.network", "70.0%", "100 steps read 1.6 K sequences", "epochs of sums"):
        assert said in ended.stdout


def test_launch_refuses_tokens_that_are_cut_before_anything_starts(folder):
    (shard,) = (folder / "library").glob("*.bin")
    shard.write_bytes(shard.read_bytes()[:-2])
    words = ("data=tokens", "data.path=library", "data.sequence_length=64", "run_dir=run", "output=json")
    ended = orchestrator("launch", *words, cwd=folder)
    assert ended.code == 2, ended.everything
    (finding,) = [finding for finding in ended.json["findings"] if finding["severity"] == "error"]
    assert finding["rule"] == "token-files"
    assert str(shard.relative_to(folder)) in finding["message"]
    assert not (folder / "run").exists()
