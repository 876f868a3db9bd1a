"""All rules together: each is tried, says nothing worse than it declares, and all are reported at once."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import DataSource, OffloadDevice
from orchestrator.findings import Severity
from orchestrator.planning.rules.registry import RULES
from tests.unit.planning.configurations import plan_of, run_config
from tests.unit.planning.rules import (
    test_data,
    test_environment,
    test_evaluation,
    test_optimizer,
    test_parallelism,
    test_pipeline,
    test_precision,
    test_profile,
    test_ranges,
    test_recompute,
    test_script,
    test_unused,
    test_zero,
)

MODULES = (
    test_data,
    test_environment,
    test_evaluation,
    test_optimizer,
    test_parallelism,
    test_pipeline,
    test_precision,
    test_profile,
    test_ranges,
    test_recompute,
    test_script,
    test_unused,
    test_zero,
)
CASES = [case for module in MODULES for case in module.CASES]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_tried_at_its_declared_severity(rule):
    assert RULES[rule].description
    tried = {case.severity for case in CASES if case.rule == rule}
    assert RULES[rule].severity in tried
    assert all(severity.is_at_most(RULES[rule].severity) for severity in tried)


@pytest.mark.parametrize(("less", "more"), [("info", "warning"), ("warning", "error"), ("error", "error")])
def test_severities_are_ordered(less, more):
    assert Severity(less).is_at_most(Severity(more))
    assert less == more or not Severity(more).is_at_most(Severity(less))


def test_a_sound_configuration_breaks_none():
    assert plan_of(run_config()).findings == ()


def test_all_broken_rules_are_reported_together():
    plan = plan_of(
        run_config(
            parallelism__pipeline_parallel_size=2,
            zero__stage=3,
            offload__optimizer_device=OffloadDevice.nvme,
            data__source=DataSource.text,
            training__max_steps=-1,
            model__num_attention_heads=7,
            parallelism__tensor_parallel_size=2,
            training__train_batch_size=7,
        )
    )
    assert plan.verdict == "invalid"
    assert "tensor-attention-heads" in {finding.rule for finding in plan.findings}
    assert {
        "zero.stage",
        "offload.nvme_path",
        "data.path",
        "training.max_steps",
        "training.train_batch_size",
        "model.num_attention_heads",
    } <= {finding.field for finding in plan.findings}
