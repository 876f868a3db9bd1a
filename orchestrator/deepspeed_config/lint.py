"""Lints a DeepSpeed JSON: every finding there is about the file by itself and about the run it is meant for.

What a layout, a model or a host has to say is the planner's, which ``ingest`` hands the same file to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.deepspeed_config import (
    auto,
    ingest,
    lint_batch,
    lint_optimizer,
    lint_precision,
    lint_services,
    lint_structure,
    lint_zero,
    read,
)
from orchestrator.deepspeed_config.correct import correct
from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.lint_rules import CHECKS, LINT_RULES, LintContext, LintRule
from orchestrator.deepspeed_config.lint_structure import structure_findings
from orchestrator.findings import Finding

__all__ = ["LINT_RULES", "LintContext", "LintRule", "effective_values", "lint"]

SUBJECTS = (read, auto, lint_structure, lint_batch, lint_precision, lint_zero, lint_optimizer, lint_services, ingest)
"""The files that hold rules; importing them registers what they hold."""


def lint(values: Mapping[str, Any], context: LintContext) -> list[Finding]:
    """Every finding about a DeepSpeed JSON whose ``"auto"`` values were resolved as far as they can be."""
    effective = effective_values(values, context)
    found = [*structure_findings(values, context)]
    for check in CHECKS:
        found += check(effective, context)
    return found


def effective_values(values: Mapping[str, Any], context: LintContext) -> Effective:
    """What DeepSpeed would use, if everything that can be corrected without a doubt were."""
    corrected, _ = correct(values, context)
    return Effective(values=corrected, version=context.version)
