"""The help pages name everything there is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from orchestrator.config.enums import Command
from orchestrator.config.options import all_options
from orchestrator.report import help as help_text


def shown(page: RenderableType) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=160).print(page)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_the_overview_names_every_verb_and_exit_code() -> None:
    first_words = [line.split()[0] for line in shown(help_text.overview())]
    assert set(Command) | {"0", "1", "2", "3", "4", "130"} <= set(first_words)


@pytest.mark.parametrize("command", list(Command))
def test_the_usage_says_which_words_a_verb_takes(command: Command) -> None:
    usage = shown(help_text.verb(command, "What it does."))[0]
    assert usage.startswith(f"usage: orchestrator {command} ")
    assert ("[-m]" in usage) == (command in (Command.launch, Command.validate))
    assert ("RUN_DIR" in usage) == (command in (Command.explain, Command.status, Command.logs, Command.stop, Command.calibrate))


def test_the_page_of_a_verb_has_every_option_without_mark_up() -> None:
    lines = shown(help_text.verb(Command.launch, "What it does."))
    assert {option.path for option in all_options()} <= {line.split()[0] for line in lines if line}
    assert not [line for line in lines if "``" in line or "???" in line]
