"""``rules``: everything that a configuration, a hostfile, a host or a checkpoint is held against, read from the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from inspect import getdoc

from orchestrator.commands.checks import check_entries
from orchestrator.commands.deepspeed_json import LINT_RULES
from orchestrator.commands.result import OK, CommandResult
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, RuleEntry, error
from orchestrator.planning.rules.check import ALL_RULES
from orchestrator.report import text

HELP = """List the rules that a run is held against, or explain those that are named.

The severity is the worst that breaking a rule can mean: an error refuses the run, a warning and an info do not.

Examples:
  orchestrator rules
  orchestrator rules pipeline-zero-stage offload-param-stage
  orchestrator rules output=json"""


def run(names: Sequence[str]) -> CommandResult:
    """List all rules, or the ``names`` of them in full.

    Raises:
        ConfigurationError: a name is no rule's.
    """
    entries = {entry.name: entry for entry in all_rules()}
    unknown = [_unknown(name, entries) for name in names if name not in entries]
    if unknown:
        raise ConfigurationError(unknown)
    chosen = [entries[name] for name in names] if names else list(entries.values())
    report = [text.rule_page(entry) for entry in chosen] if names else text.rules_report(chosen)
    return CommandResult(exit_code=OK, payload={"rules": [entry.to_dict() for entry in chosen]}, text=report)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of rules among ``words``, and the overrides."""
    names = [word for word in words if "=" not in word and not word.startswith("~")]
    return names, [word for word in words if word not in names]


def all_rules() -> Iterator[RuleEntry]:
    """Every rule of every source. A name that several sources use is listed with the first."""
    seen: set[str] = set()
    for entries in _sources():
        for entry in entries:
            if entry.name not in seen:
                seen.add(entry.name)
                yield entry


def _sources() -> tuple[Iterable[RuleEntry], ...]:
    """Where rules come from: the planner's, those of a DeepSpeed JSON, and the checks made elsewhere."""
    return (_planning_rules(), _json_rules(), check_entries())


def _json_rules() -> Iterator[RuleEntry]:
    for rule in LINT_RULES.values():
        yield RuleEntry(
            name=rule.name, severity=rule.severity, subject="DeepSpeed JSON", description=rule.description, reason=""
        )


def _planning_rules() -> Iterator[RuleEntry]:
    for rule in ALL_RULES:
        yield RuleEntry(
            name=rule.name,
            severity=rule.severity,
            subject=rule.subject.replace("_", " "),
            description=rule.description,
            reason=getdoc(rule.check) or "",
        )


def _unknown(name: str, known: Iterable[str]) -> Finding:
    near = get_close_matches(name, list(known), n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else "orchestrator rules lists them"
    return error("unknown-rule", name, f"there is no rule {name!r}", fix)
