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
from tests.unit.worker.data.preparing import write_tokenizer

README = Path(__file__).parents[2] / "README.md"

EXAMPLES = [line.split()[2:] for line in prepare.HELP.splitlines() if line.startswith("  orchestrator prepare ")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What the README's page works on: stories of two years, the last two of them broken, and a tokenizer."""
    stories = tmp_path / "data" / "stories"
    stories.mkdir(parents=True)
    for year, count in ((2023, 1200), (2024, 800)):
        lines = [json.dumps({"text": f"Story {number} of {year}: a fox and a hen.\n"}) for number in range(count)]
        broken = ['{"text": "half a li', '{"title": "no text"}'] if year == 2024 else []
        (stories / f"{year}.jsonl").write_text("".join(f"{line}\n" for line in [*lines, *broken]))
    write_tokenizer(tmp_path / "models" / "llama" / "tokenizer.json")
    return tmp_path


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


def test_the_page_of_the_readme_is_followed_to_the_letter(data: Path) -> None:
    """From text with two bad lines to tokens that are checked, and found damaged when they are."""
    page = README.read_text(encoding="utf-8").partition("### prepare\n")[2].partition("### launch\n")[0]
    words = next(line for line in page.splitlines() if line.startswith("$ orchestrator prepare")).split()[2:]
    words = [word.replace("/data/", f"{data}/data/").replace("/models/", f"{data}/models/") for word in words]
    refused = orchestrator(*words, cwd=data)
    assert refused.code == 2
    assert refused.stderr.replace(str(data), "").strip() in page
    made = orchestrator(*words, "prepare.max_bad_fraction=0.001", "output=json", cwd=data)
    assert made.code == 0, made.everything
    assert (made.json["documents"], made.json["bad_documents"]) == (2000, 2)
    tokens = data / "data" / "story_tokens"
    assert made.json["tokens"] == open_tokens(tokens).num_tokens
    checked = orchestrator("prepare", f"prepare.output={tokens}", "prepare.check=true", cwd=data)
    assert checked.code == 0, checked.everything
    assert "every file is as it was written" in checked.stdout
    with (tokens / "shard-00000.bin").open("r+b") as file:
        file.write(b"\xff\xff")
    damaged = orchestrator("prepare", f"prepare.output={tokens}", "prepare.check=true", "output=json", cwd=data)
    assert (damaged.code, damaged.json["status"]) == (2, "damaged")
    assert "shard-00000.bin" in damaged.json["findings"][0]["message"]


def test_interrupted_it_says_so_and_goes_on_later(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"word{number % 50} " * 500}) + "\n" for number in range(1500)))
    words = [f"prepare.input=[{path}]", "prepare.output=tokens", "prepare.shard_tokens=50000", "data.tokenizer_vocab_size=260"]
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
        ([*PATHS, "prepare.text_field=t", "prepare.prompt_field=q", "prepare.answer_field=a"], ["prepare.text_field"]),
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
