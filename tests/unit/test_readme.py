"""What the README names exists, and what it shows is what comes out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import cli
from orchestrator.config.check import is_known_key
from orchestrator.config.enums import Command

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```[a-z]*\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
GROUPS = {folder.name: {file.stem for file in folder.glob("*.yaml")} for folder in (ROOT / "conf").iterdir() if folder.is_dir()}
MADE_BY_THE_READER = {"experiment=stories", "experiment=books", "experiment=best", "cluster=ours", "cluster=PRESET"}
WRONG_ON_PURPOSE = {"zero.stge=3", "model=llama_9"}


def words() -> Iterator[str]:
    """The words of every command that is shown, and what stands between backticks, that look like overrides."""
    commands = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if "orchestrator " in line]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", README))
    for text in [*commands, *spans]:
        for word in re.findall(r"(?:^|(?<=[\s'\"]))[a-z_]+(?:\.[\w.]+)?=[^\s'\"#]*", text):
            yield word.rstrip(".,;:")


def test_every_option_and_choice_that_is_named_exists() -> None:
    """Words of a group, and of sections; others (``slots=4``, ``lr_scheduler=script.lr_scheduler``) are no options."""
    wrong = []
    for word in set(words()) - MADE_BY_THE_READER - WRONG_ON_PURPOSE:
        key, _, value = word.partition("=")
        if key in GROUPS and "." not in value:
            wrong += [word for choice in value.split(",") if choice and choice not in GROUPS[key]]
        elif "." in key and key.split(".")[0] in {*GROUPS, "planner", "sweep"} and not is_known_key(key):
            wrong.append(word)
    assert not wrong


def test_every_verb_has_a_page_and_stands_in_the_table() -> None:
    table = README.partition("| verb | what it does |")[2].partition("\n\n")[0]
    pages = " ".join(re.findall(r"^### (.+)$", README, re.MULTILINE))
    for verb in Command:
        assert f"`{verb}`" in table
        assert re.search(rf"\b{verb}\b", pages), verb


def test_links_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", README), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 20
    lost = [link for link in links if link.startswith("#") and link[1:] not in anchors]
    lost += [link for link in links if not link.startswith(("#", "https:")) and not (ROOT / link).exists()]
    assert not lost


def test_files_and_programs_of_this_tree_are_there() -> None:
    paths = set(re.findall(r"(?<!/)\b(?:tests|conf|models)/[\w/.]*\w\b", README))
    programs = {name.replace(".", "/") + ".py" for name in re.findall(r"\btests\.(?:benchmarks|gpu)\.\w+", README)}
    assert len(programs) > 10
    assert not [path for path in paths | programs if not (ROOT / path).exists()]


def shown(verb: str) -> list[tuple[str, list[str]]]:
    """The commands of a verb that can be run as they stand, and the lines that the README shows of each."""
    examples = []
    for block in BLOCKS:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            needs_more = any(word in command for word in ("estimate=exact", "data=mixture", "deepspeed_json"))
            if command.startswith(f"orchestrator {verb} ") and not needs_more:
                examples.append((command, [line.rstrip() for line in output.splitlines() if line.strip(" .")]))
    return examples


@pytest.mark.parametrize(("command", "lines"), shown("validate"))
def test_what_validate_is_shown_to_print_is_what_it_prints(
    command: str, lines: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.run(shlex.split(command)[1:])
    printed = " ".join("".join(capsys.readouterr()).split())
    # a table may be shown narrower, so that a long text is broken at other words: the first columns are compared
    for line in lines:
        if "─" not in line and not line.startswith("    " * 4):
            assert " ".join(line.split())[:60] in printed
