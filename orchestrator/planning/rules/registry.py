"""What a rule is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.findings import Finding, Severity
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.model_spec import ModelSpec


class Fact(StrEnum):
    """What a rule needs beside the configuration. A rule is skipped when a fact it needs could not be established."""

    model = "model"
    cluster = "cluster"
    layout = "layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """Everything a rule may look at."""

    config: RunConfig
    settings: DeepSpeedSettings
    established_model: ModelSpec | None
    established_cluster: ClusterSpec | None
    established_layout: ParallelLayout | None

    def has(self, fact: Fact) -> bool:
        """Whether ``fact`` could be established."""
        return getattr(self, f"established_{fact.value}") is not None

    @property
    def model(self) -> ModelSpec:
        """The model, for rules that need it."""
        assert self.established_model is not None
        return self.established_model

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster, for rules that need it."""
        assert self.established_cluster is not None
        return self.established_cluster

    @property
    def layout(self) -> ParallelLayout:
        """The layout, for rules that need it."""
        assert self.established_layout is not None
        return self.established_layout


Check = Callable[[RuleContext], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named check."""

    name: str
    description: str
    severity: Severity
    """The worst that its findings can be."""
    subject: str
    """The file it stands in."""
    needs: frozenset[Fact]
    concerns_memory: bool
    """Whether the memory estimate would mean nothing while this rule is broken."""
    check: Check


RULES: dict[str, Rule] = {}
"""All rules by name, in the order their files are read."""


def rule(
    name: str, description: str, severity: Severity, *needs: Fact, concerns_memory: bool = False
) -> Callable[[Check], Check]:
    """Register a function as the rule ``name``. Its findings must carry that name, and none may be worse than ``severity``."""

    def register(check: Check) -> Check:
        assert name not in RULES, f"two rules are called {name}"
        RULES[name] = Rule(
            name=name,
            description=description,
            severity=severity,
            subject=check.__module__.rpartition(".")[2],
            needs=frozenset(needs),
            concerns_memory=concerns_memory,
            check=check,
        )
        return check

    return register
