"""``orchestrator prepare``: what it prints, its JSON, its exit codes, and what it refuses before anything starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator import cli
from orchestrator.commands import prepare
from orchestrator.config import load
from orchestrator.tokens.store import open_tokens
from tests.cli.command_line import orchestrator

EXAMPLES = [line.split()[2:] for line in prepare.HELP.splitlines() if line.startswith("  orchestrator prepare ")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line that is broken among many that are not."""
    path = tmp_path_factory.mktemp("text") / "stories.jsonl"
    lines = [json.dumps({"text": f"story {number} of many\n" * 20}) for number in range(200)]
    path.write_text("\n".join([*lines[:100], "{broken", *lines[100:]]) + "\n")
    return path


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_the_examples_of_the_help_are_possible(words: list[str]) -> None:
    config = load.load_config([*words, "command=prepare"])
    assert prepare.word_findings(words) == []
    if not config.prepare.check:
        assert prepare.request_of(config).input


def test_the_help_explains_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["prepare", "--help"]) == 0
    output = capsys.readouterr().out
    assert "Examples:" in output
    assert "prepare.max_bad_fraction" in output


def test_from_text_to_checked_tokens(text: Path, tmp_path: Path) -> None:
    words = ("prepare", f"prepare.input=[{text}]", "prepare.output=tokens", "data.tokenizer_vocab_size=300")
    refused = orchestrator(*words, cwd=tmp_path)
    assert refused.code == 2
    assert f"{text}:101" in refused.stderr
    assert "Traceback" not in refused.everything
    made = orchestrator(*words, "prepare.max_bad_fraction=0.01", "output=json", cwd=tmp_path)
    assert made.code == 0, made.everything
    assert made.json["documents"] == 200
    assert made.json["bad_documents"] == 1
    assert made.json["tokens"] == open_tokens(tmp_path / "tokens").num_tokens
    checked = orchestrator("prepare", "prepare.output=tokens", "prepare.check=true", cwd=tmp_path)
    assert checked.code == 0, checked.everything
    assert "every file is as it was written" in checked.stdout
    with (tmp_path / "tokens" / "shard-00000.bin").open("r+b") as file:
        file.write(b"\xff\xff")
    damaged = orchestrator("prepare", "prepare.output=tokens", "prepare.check=true", "output=json", cwd=tmp_path)
    assert damaged.code == 2
    assert damaged.json["status"] == "damaged"
    assert "shard-00000.bin" in damaged.json["findings"][0]["message"]


def test_interrupted_it_says_so_and_goes_on_later(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"word{number % 50} " * 500}) + "\n" for number in range(4000)))
    words = [f"prepare.input=[{path}]", "prepare.output=tokens", "prepare.shard_tokens=200000", "data.tokenizer_vocab_size=260"]
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "prepare", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list((tmp_path / "tokens").glob("shard-*.idx")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "interrupted; the same command goes on where it was" in output
    again = orchestrator("prepare", *words, cwd=tmp_path, environment={"NO_COLOR": "1"})
    assert again.code == 0, again.everything
    assert "going on after" in again.stdout
    assert "\x1b" not in again.everything


PATHS = ["prepare.input=[a.jsonl]", "prepare.output=out"]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ([], ["prepare.input", "prepare.output"]),
        (["prepare.input=[a.jsonl]"], ["prepare.output"]),
        (["prepare.input=[a]", "prepare.output=a/tokens"], ["prepare.output"]),
        ([*PATHS, "prepare.prompt_field=q"], ["prepare.answer_field"]),
        ([*PATHS, "prepare.answer_field=a"], ["prepare.prompt_field"]),
        ([*PATHS, "prepare.prompt_field=q", "prepare.answer_field=q"], ["prepare.answer_field"]),
        ([*PATHS, "prepare.prompt_field=q", "prepare.answer_field=a", "prepare.format=text"], ["prepare.prompt_field"]),
        ([*PATHS, "prepare.processes=0", "prepare.shard_tokens=-1"], ["prepare.processes", "prepare.shard_tokens"]),
        ([*PATHS, "prepare.max_bad_fraction=1.5"], ["prepare.max_bad_fraction"]),
        ([*PATHS, "data.tokenizer_vocab_size=100"], ["data.tokenizer_vocab_size"]),
        ([*PATHS, "zero=stage3", "training.max_steps=5"], ["zero", "training.max_steps"]),
        ([*PATHS, "prepare.format=csv"], ["prepare.format"]),
        ([*PATHS, "prepare.inptu=[a]"], ["prepare.inptu"]),
        (["prepare.check=true"], ["prepare.output"]),
        (["prepare.check=true", "prepare.output=nowhere"], ["prepare.output"]),
    ],
)
def test_options_that_make_no_sense_are_refused_all_at_once(
    words: list[str], fields: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["prepare", *words, "output=json"]) == 2
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["field"] for finding in findings] == fields
    assert all(finding["fix"] for finding in findings)
    assert not list(tmp_path.iterdir())
