"""Shell completion: Hydra's own, for a program whose first word is a verb."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from orchestrator.config.enums import Command
from orchestrator.findings import Finding, error

_ACTIONS = ("install", "uninstall", "query")
_SHELLS = ("bash", "zsh", "fish")


def problem(words: Sequence[str]) -> Finding | None:
    """What is wrong with the words after ``-sc``."""
    if len(words) == 1 and tuple(words[0].split("=")) in {(action, shell) for action in _ACTIONS for shell in _SHELLS}:
        return None
    given = " ".join(words) or "nothing"
    fix = f'eval "$(orchestrator -sc install=SHELL)", with one of {", ".join(_SHELLS)}'
    return error("unknown-flag", "-sc", f"it takes {', '.join(_ACTIONS)} with a shell, not {given}", fix)


def verbs_for(line: str) -> list[str] | None:
    """The verbs that the line may go on with; None once it has one, and Hydra completes the rest."""
    words = line.split()
    if len(words) > 2 or (len(words) == 2 and line.endswith(" ")):
        return None
    typed = words[1] if len(words) == 2 else ""
    return [verb.value for verb in Command if verb.value.startswith(typed)]


def without_verb(line: str) -> str:
    """The line as Hydra expects it: the program and its overrides."""
    program, _, rest = line.lstrip().partition(" ")
    _verb, _, overrides = rest.lstrip().partition(" ")
    return f"{program} {overrides}"


def config_dir_of(line: str) -> Path | None:
    """The folder that the line adds to the search path."""
    for word, following in pairwise([*line.split(), ""]):
        name, _, value = word.partition("=")
        if name in ("--config-dir", "-cd") and Path(value or following).is_dir():
            return Path(value or following)
    return None
