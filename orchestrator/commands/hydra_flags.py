"""The flags that are Hydra's own: which there are, and what each takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from orchestrator.findings import Finding, error

HYDRA_HELP = "--hydra-help"
_ACTIONS = {"--cfg", "-c", "--info", "-i", HYDRA_HELP, "--shell-completion", "-sc"}
FLAGS = {*_ACTIONS, "--resolve", "--package", "-p"}
_CFG = ("job", "hydra", "all")
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_CHOICES = {"--cfg": _CFG, "-c": _CFG, "--info": _INFO, "-i": _INFO}


def read_flag(word: str, remaining: deque[str]) -> tuple[list[str], list[Finding]]:
    """The words of one of ``FLAGS`` as Hydra takes them; its value is taken off ``remaining``. ``--info`` alone means all."""
    name, _, value = word.partition("=")
    if name in ("--package", "-p"):
        value = value or (remaining.popleft() if remaining else "")
        return [name, value], [] if value else [error("unknown-flag", name, f"{name} names no section", f"write {name} zero")]
    if name not in _CHOICES:
        return [word], []
    known = _CHOICES[name]
    if not value and remaining and (remaining[0] in known or "=" not in remaining[0]):
        value = remaining.popleft()
    value = value or ("all" if known is _INFO else "")
    if value in known:
        return [name, value], []
    named = f", not {value}" if value else ""
    return [name, value], [error("unknown-flag", name, f"{name} takes one of {', '.join(known)}{named}", f"{name} {known[0]}")]


def flag_findings(flags: Sequence[str], *, multirun: bool) -> list[Finding]:
    """What is wrong with the flags together."""
    if flags and not _ACTIONS.intersection(flags):
        return [error("unknown-flag", flags[0], f"{flags[0]} says how --cfg prints", "add --cfg job")]
    if flags and multirun:
        return [error("multirun", "-m", f"{flags[0]} shows one configuration", "leave -m and its several values out")]
    return []
