"""A finding: one thing that is wrong, doubtful or worth knowing about a configuration, with the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is: an ``error`` refuses the run, a ``warning`` and an ``info`` do not."""

    error = "error"
    warning = "warning"
    info = "info"

    def is_at_most(self, other: Severity) -> bool:
        """Whether this is as bad as ``other``, or less."""
        order = list(Severity)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """A rule as ``orchestrator rules`` lists it: what it is about, and the worst its findings can be."""

    name: str
    severity: Severity
    subject: str
    description: str
    reason: str = ""
    """Why the rule is there, where that is written down."""

    def to_dict(self) -> dict[str, str]:
        """An entry of ``rules output=json``."""
        return {key: str(value) for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule or check has to say.

    ``rule`` is the stable name of the rule, ``field`` the dotted configuration key it speaks of, ``message`` the
    condition with the values that broke it, and ``fix`` the smallest change that mends it.
    """

    rule: str
    severity: Severity
    field: str
    message: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        """The finding as the ``findings`` entry of ``output=json``."""
        return {key: str(value) for key, value in asdict(self).items()}


def error(rule: str, field: str, message: str, fix: str) -> Finding:
    """A finding that refuses the run."""
    return Finding(rule=rule, severity=Severity.error, field=field, message=message, fix=fix)


def warning(rule: str, field: str, message: str, fix: str) -> Finding:
    """A finding the user should know of; the run may start."""
    return Finding(rule=rule, severity=Severity.warning, field=field, message=message, fix=fix)


def info(rule: str, field: str, message: str, fix: str) -> Finding:
    """A remark."""
    return Finding(rule=rule, severity=Severity.info, field=field, message=message, fix=fix)


def has_error(findings: Iterable[Finding]) -> bool:
    """Whether any of the findings refuses the run."""
    return any(finding.severity is Severity.error for finding in findings)
