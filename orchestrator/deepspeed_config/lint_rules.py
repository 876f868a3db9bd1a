"""What a lint rule is, the list of all of them, and what a rule may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from packaging.version import Version

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.effective import Effective
from orchestrator.findings import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRule:
    """A named check of a DeepSpeed JSON. ``severity`` is that of its gravest finding."""

    name: str
    description: str
    severity: Severity

    def __call__(self, path: str, message: str, fix: str, severity: Severity | None = None) -> Finding:
        """A finding of this rule about the key at ``path``."""
        return Finding(rule=self.name, severity=severity or self.severity, field=path, message=message, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintContext:
    """The run a DeepSpeed JSON is meant for. Sizes that are not known are ``None``."""

    version: Version
    num_devices: int
    devices_per_host: int
    accelerator: Accelerator = Accelerator.cuda
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    hf_arguments: Mapping[str, Any] | None = None
    """TrainingArguments of the Hugging Face Trainer, where it starts the run."""
    client_optimizer: str | None = None
    """Class of the optimizer that the script makes itself."""
    hidden_size: int | None = None
    smallest_parameters: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Elements of the model's smallest parameters, by name."""

    def is_before(self, release: str) -> bool:
        """Whether the run's DeepSpeed is older than ``release``."""
        return self.version < Version(release)


LINT_RULES: dict[str, LintRule] = {}
"""All lint rules by name, in the order their files are read."""

Check = Callable[[Effective, LintContext], Iterator[Finding]]
CHECKS: list[Check] = []
"""The checks of effective values, in the order of their files."""


def lint_rule(name: str, description: str, severity: Severity) -> LintRule:
    """Register the rule ``name``."""
    assert name not in LINT_RULES, f"two lint rules are called {name}"
    LINT_RULES[name] = LintRule(name=name, description=description, severity=severity)
    return LINT_RULES[name]


def check(function: Check) -> Check:
    """Register a check of effective values."""
    CHECKS.append(function)
    return function
