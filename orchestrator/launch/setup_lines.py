"""``launcher.setup``: shell lines that run in bash before the workers start. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

FAILED = "launcher.setup failed"
"""What is printed, before the line and its exit code, when one fails."""


def after_setup(setup: Sequence[str], argv: Sequence[str]) -> list[str]:
    """The command that runs ``setup`` in one bash, each line in turn, and becomes ``argv`` if none fails."""
    if not setup:
        return list(argv)
    return ["bash", "-c", f'{_lines(setup)}exec "$@"', "bash", *argv]


def sourced_text(setup: Sequence[str], environment: Mapping[str, str]) -> str:
    """A file for a shell to read: it sets the variables, runs the lines, and ends the shell if one fails."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    return exports + _lines(setup)


def _lines(setup: Sequence[str]) -> str:
    return "".join(f"eval {shlex.quote(line)} || {_failure(line)}\n" for line in setup)


def _failure(line: str) -> str:
    return f'{{ code=$?; echo {shlex.quote(f"{FAILED}: {line}")} "(exit code $code)" >&2; exit $code; }}'
