"""Runs every rule that can be run."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.findings import Finding, has_error
from orchestrator.planning.rules import (
    cluster,
    communication,
    data,
    documents,
    environment,
    evaluation,
    freeze,
    learning_rate,
    offload,
    optimizer,
    parallelism,
    partition,
    pipeline,
    precision,
    profile,
    ranges,
    recompute,
    script,
    unused,
    zero,
)
from orchestrator.planning.rules.registry import RULES, Rule, RuleContext

SUBJECTS = (
    ranges,
    cluster,
    parallelism,
    pipeline,
    partition,
    recompute,
    zero,
    offload,
    precision,
    communication,
    data,
    documents,
    evaluation,
    freeze,
    learning_rate,
    optimizer,
    profile,
    environment,
    script,
    unused,
)
"""The files that hold rules, in the order of their findings; importing them registers what they hold."""

ALL_RULES: tuple[Rule, ...] = tuple(
    rule for module in SUBJECTS for rule in RULES.values() if rule.check.__module__ == module.__name__
)
"""Every rule, subject by subject."""


def check_rules(context: RuleContext) -> list[Finding]:
    """The findings of all rules whose facts are established, in the order of the subjects."""
    findings: list[Finding] = []
    own_script = context.config.training.script is not None
    for rule in ALL_RULES:
        if own_script and script.is_about_our_training(rule):
            continue
        if all(context.has(fact) for fact in rule.needs):
            found = list(rule.check(context))
            assert all(finding.rule == rule.name and finding.severity.is_at_most(rule.severity) for finding in found), rule
            findings += found
    return findings


def forbids_estimate(findings: Sequence[Finding]) -> bool:
    """Whether a rule is broken without which a memory estimate means nothing."""
    return any(finding.rule in RULES and RULES[finding.rule].concerns_memory and has_error([finding]) for finding in findings)
