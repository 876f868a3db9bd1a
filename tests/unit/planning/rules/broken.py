"""Configurations that break a rule, and the checks that each gets: it says so, and its fix mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, Severity
from tests.unit.planning.configurations import overridden, plan_of, run_config

ERROR, WARNING, INFO = Severity.error, Severity.warning, Severity.info
TP, PP = "parallelism.tensor_parallel_size", "parallelism.pipeline_parallel_size"


@dataclass(frozen=True)
class Broken:
    """A broken rule. ``says`` are pieces of the message, ``mended_by`` overrides that are part of the fix and mend it."""

    rule: str
    severity: Severity
    field: str
    changes: dict[str, Any]
    says: tuple[str, ...] = ()
    mended_by: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rule}: {self.field} {self.severity.value}"


def each(cases: Sequence[Broken]) -> pytest.MarkDecorator:
    """Parametrise over ``cases``."""
    return pytest.mark.parametrize("case", cases, ids=str)


def check(case: Broken) -> None:
    """The rule says what is wrong, and each override of the fix that can be tried mends it."""
    config = run_config(**case.changes)
    (finding,) = _findings(config, case)
    for piece in case.says:
        assert piece in finding.message
    assert finding.fix
    for override in case.mended_by:
        assert override in finding.fix
    if case.mended_by:
        assert _findings(overridden(config, case.mended_by), case) == []


def tensor(size: int, **changes: Any) -> dict[str, Any]:
    return {"parallelism__tensor_parallel_size": size} | changes


def pipeline(size: int, **changes: Any) -> dict[str, Any]:
    return {"parallelism__pipeline_parallel_size": size} | changes


def _findings(config: RunConfig, case: Broken) -> list[Finding]:
    plan = plan_of(config, **case.arguments)
    return [
        finding
        for finding in plan.findings
        if (finding.rule, finding.severity, finding.field) == (case.rule, case.severity, case.field)
    ]
