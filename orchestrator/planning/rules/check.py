"""Runs every rule that can be run."""

from __future__ import annotations

from orchestrator.findings import Finding, has_error
from orchestrator.planning.rules import (
    cluster,
    communication,
    data,
    freeze,
    learning_rate,
    offload,
    optimizer,
    parallelism,
    partition,
    pipeline,
    precision,
    ranges,
    recompute,
    zero,
)
from orchestrator.planning.rules.registry import RULES, RuleContext

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
    freeze,
    learning_rate,
    optimizer,
)
"""The files that hold rules; importing them registers what they hold."""


def check_rules(context: RuleContext) -> list[Finding]:
    """The findings of all rules whose facts are established, in the order of the subjects."""
    findings: list[Finding] = []
    for rule in RULES.values():
        if all(context.has(fact) for fact in rule.needs):
            found = list(rule.check(context))
            assert all(finding.rule == rule.name for finding in found), rule.name
            findings += found
    return findings


def forbids_estimate(findings: list[Finding]) -> bool:
    """Whether a rule is broken without which a memory estimate means nothing."""
    return any(RULES[finding.rule].concerns_memory and has_error([finding]) for finding in findings)
