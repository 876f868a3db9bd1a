"""Thousands of drawn JSONs: where we and the installed DeepSpeed differ, there is a reason, and nothing raises.

Who accepts what, and what is used of the accepted ones.
"""

from __future__ import annotations

from collections import Counter

import pytest
from packaging.version import Version

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.lint import LINT_RULES, LintContext, effective_values, lint
from orchestrator.deepspeed_config.lint_batch import autotp_size, batch_of
from orchestrator.findings import Severity
from tests.unit.deepspeed_config.drawn import draw
from tests.unit.deepspeed_config.installed import ask

COUNT, SEED = 8000, 20261130
STRICTER = {
    "json-unknown-key": "DeepSpeed ignores unknown keys where it reads a block with single look-ups",
    "json-dotted-key": "DeepSpeed ignores dotted keys",
    "json-type": "DeepSpeed does not check what it keeps as it is; it fails later, or takes true for 1",
    "json-choice": "DeepSpeed does not check names it only uses later (data types, samplers)",
    "json-range": "DeepSpeed does not check thread counts and warmup steps when it reads them",
    "json-auto": 'DeepSpeed drops "auto", or keeps it and fails in the first step',
    "json-key-conflict": "bfloat16 is ignored beside bf16",
    "json-autotp-world": "the mesh of AutoTP fails when the engine starts",
    "json-sequence-parallel": "replicas would be a fraction",
    "json-optimizer-type": "the engine refuses the optimizer, or the block does nothing",
    "json-optimizer-untested": "the engine refuses the optimizer",
    "json-max-grad-norm": "the engine raises",
    "json-lamb-loss-scale": "the engine asserts",
    "json-managed-accumulation": "the engine asserts",
    "json-betas": "torch refuses them",
    "json-scheduler-type": "the engine refuses the scheduler",
    "json-scheduler-steps": "the scheduler cannot be made",
    "json-stage3-only": "nothing happens below stage 3, and nobody says so",
    "json-nvme-path": "the engine dies joining the path",
    "json-super-offload": "it works at stage 3",
    "json-zenflow": "the engine refuses it",
    "json-quantized-gradients": "the engine asserts",
    "json-hpz-world": "the groups cannot be made",
    "json-compute-grad-norm": "the engine refuses the combination",
    "json-elastic-checkpoint": "the first save raises",
    "json-legacy-stage1": "the engine raises",
    "json-sub-group-size": "there are no sub-groups of nothing",
    "json-param-dtype": "the engine asserts",
    "json-master-weights": "the engine asserts",
    "json-autocast": "torch does not train in int8",
    "json-activation-checkpointing": "the checkpoint function asserts",
}
"""Rules by which we refuse what ``DeepSpeedConfig`` accepts, and what would happen instead."""
MILDER = {
    "json-key-removed": "removed keys that are off are a warning: compile drops them",
    "json-autotp-batch": "the batch that is really read is accepted: compile leaves train_batch_size out",
}
"""Warnings for what ``DeepSpeedConfig`` refuses."""


@pytest.fixture(scope="module")
def drawn():
    cases = draw(SEED, COUNT)
    found = []
    for case, verdict in zip(cases, ask("judge", cases), strict=True):
        context = LintContext(
            version=Version("0.19.8"),
            num_devices=case["world"],
            devices_per_host=case["world"],
            accelerator=Accelerator.cpu,
        )
        found.append((case, context, lint(case["values"], context), verdict))
    return found


def rules(findings, severity):
    return {finding.rule for finding in findings if finding.severity is severity}


def test_both_accept_and_both_refuse_many(drawn):
    agreement = Counter((verdict["refusal"] is None, not rules(found, Severity.error)) for _, _, found, verdict in drawn)
    assert agreement[True, True] > COUNT / 5
    assert agreement[False, False] > COUNT / 5


def test_what_deepspeed_refuses_is_refused_or_warned_of(drawn):
    missed = [
        (verdict["refusal"], case)
        for case, _, found, verdict in drawn
        if verdict["refusal"] is not None
        and not rules(found, Severity.error)
        and not rules(found, Severity.warning) & MILDER.keys()
    ]
    assert missed == []


def test_what_deepspeed_accepts_is_only_refused_for_a_reason(drawn):
    unexplained = [
        (sorted(errors - STRICTER.keys()), case)
        for case, _, found, verdict in drawn
        if verdict["refusal"] is None and (errors := rules(found, Severity.error)) and not errors & STRICTER.keys()
    ]
    assert unexplained == []


def test_the_reasons_are_about_rules_there_are():
    assert (STRICTER.keys() | MILDER.keys()) <= LINT_RULES.keys()


def test_what_deepspeed_would_use_is_what_we_plan_with(drawn):
    compared = 0
    for case, context, found, verdict in drawn:
        if verdict["refusal"] is not None or rules(found, Severity.error):
            continue
        effective = effective_values(case["values"], context)
        for path, theirs in verdict["used"].items():
            if path.startswith("zero_optimization.zenflow") or path.endswith((".overlap_comm", "_batch_size_per_gpu")):
                continue
            if path in ("train_batch_size", "gradient_accumulation_steps") or not is_key(path):
                continue
            ours = effective.value(path)
            assert (list(ours) if isinstance(ours, tuple) else ours) == theirs, (path, case)
            compared += 1
        if autotp_size(effective) == 1:
            batch = batch_of(effective, context)
            assert batch is not None
            for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
                assert getattr(batch, name) == verdict["used"][name], case
    assert compared > 50_000


def is_key(path: str) -> bool:
    from orchestrator.deepspeed_config.keys.entry import Key
    from orchestrator.deepspeed_config.keys.table import ROOT

    entry = ROOT.find(path)
    return isinstance(entry, Key) and entry.deprecated_for is None
