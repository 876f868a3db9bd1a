"""The exceptions the orchestrator raises for its users. Each carries the data a caller needs.

::

    OrchestratorError            base of all; never raised itself
    +-- ConfigurationError       the configuration, or what it names, was refused: findings say why (exit code 2)

How a run that was started ended is no exception: ``commands.result`` has the exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.findings import Finding


class OrchestratorError(Exception):
    """Base of everything the orchestrator raises for its users."""


class ConfigurationError(OrchestratorError):
    """The configuration was refused. ``findings`` holds every problem, not only the first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(f"{finding.field}: {finding.message}" for finding in self.findings))
