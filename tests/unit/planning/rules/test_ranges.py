"""Numbers outside the range in which they mean something: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

import pytest

from orchestrator.planning.rules.ranges import RANGES
from tests.unit.planning.configurations import plan_of, run_config
from tests.unit.planning.rules.broken import ERROR, Broken, check, each

CASES = [
    Broken(
        "optimizer-betas", ERROR, "optimizer.betas", {"optimizer__betas": [0.9]}, ("[0.9]",), ("optimizer.betas=[0.9,0.95]",)
    ),
    Broken("optimizer-betas", ERROR, "optimizer.betas", {"optimizer__betas": [0.9, 1.0]}, ("1.0",)),
    Broken("value-range", ERROR, "zero.stage", {"zero__stage": 4}, ("4",), ("zero.stage=3",)),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


@pytest.mark.parametrize("field", RANGES)
def test_a_number_out_of_its_range_is_refused(field):
    name = field.replace(".", "__")
    for value in (-1, 10**18, float("nan"), float("inf")):
        broken = [finding for finding in plan_of(run_config(**{name: value})).findings if finding.rule == "value-range"]
        assert [finding.field for finding in broken] == [field]
        assert str(value) in broken[0].message
        assert f"set {field}=" in broken[0].fix


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("training.max_steps", 0, "training.max_steps=1"),
        ("data.held_out_fraction", 1.0, "below 1"),
        ("planner.memory_margin", 0.9, "planner.memory_margin=0.5"),
        ("precision.min_loss_scale", 0, "precision.min_loss_scale=1"),
        ("offload.optimizer_buffer_count", 3, "offload.optimizer_buffer_count=4"),
        ("optimizer.eps", 0.0, "above 0"),
    ],
)
def test_bounds_are_where_they_should_be(field, value, fix):
    config = run_config(**{field.replace(".", "__"): value})
    (finding,) = [finding for finding in plan_of(config).findings if finding.rule == "value-range"]
    assert finding.field == field
    assert fix in finding.fix


def test_an_absurd_number_of_layers_is_refused_and_not_planned():
    plan = plan_of(run_config(model__num_hidden_layers=10**9, training__freeze=["norm"]))
    (finding,) = plan.findings
    assert (finding.rule, finding.field) == ("model-size", "model.num_hidden_layers")
    assert "1000000000" in finding.message
