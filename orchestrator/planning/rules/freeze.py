"""Rules about parameters that are not trained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from orchestrator.findings import Finding, Severity, error
from orchestrator.planning.parameter_names import frozen_parameters, named_parameters
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_FIELD = "training.freeze"


@rule("freeze-pattern", "every pattern of training.freeze is a regular expression", Severity.error, concerns_memory=True)
def freeze_pattern(context: RuleContext) -> Iterator[Finding]:
    """The syntax is Python's."""
    for pattern in context.config.training.freeze:
        problem = _problem(pattern)
        if problem is not None:
            yield error(
                "freeze-pattern",
                _FIELD,
                f"{pattern!r} is not a regular expression: {problem}",
                f"write {re.escape(pattern)!r} for the text itself",
            )


@rule("freeze-match", "every pattern of training.freeze finds a parameter", Severity.error, Fact.model)
def freeze_match(context: RuleContext) -> Iterator[Finding]:
    """A typing error would train what was meant to stay."""
    patterns = _sound(context)
    names = [parameter.name for parameter in named_parameters(context.model)] if patterns else []
    for pattern in patterns:
        if not frozen_parameters(context.model, [pattern]):
            if "\\\\" in pattern:
                fix = "write one backslash, in single quotes: \"training.freeze=['layers\\.0\\.']\""
                yield error("freeze-match", _FIELD, f"{pattern} looks for a backslash, which no name has", fix)
                continue
            close = get_close_matches(_plain(pattern), names, n=3, cutoff=0.3) or names[:3]
            yield error(
                "freeze-match",
                _FIELD,
                f"{pattern!r} finds none of the {len(names)} parameters of {context.model.name}",
                f"there are {', '.join(close)}, and more",
            )


@rule("freeze-all", "something is trained", Severity.error, Fact.model, concerns_memory=True)
def freeze_all(context: RuleContext) -> Iterator[Finding]:
    """An optimizer needs a parameter."""
    patterns = _sound(context)
    names = {parameter.name for parameter in named_parameters(context.model)} if patterns else set()
    if patterns and frozen_parameters(context.model, patterns) == names:
        yield error("freeze-all", _FIELD, f"{patterns} leave nothing to train", f"set {_FIELD}=[]")


def _sound(context: RuleContext) -> list[str]:
    return [pattern for pattern in context.config.training.freeze if _problem(pattern) is None]


def _problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error as problem:
        return str(problem)
    return None


def _plain(pattern: str) -> str:
    """A pattern without the signs that no name has, to compare it with names."""
    return re.sub(r"[^A-Za-z0-9_.]", "", pattern.replace("\\", ""))
