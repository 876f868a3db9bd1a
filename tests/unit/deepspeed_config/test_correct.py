"""Corrections are those nobody can doubt, all of them are listed, and DeepSpeed takes the result."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from packaging.version import Version

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.correct import complete, correct
from orchestrator.deepspeed_config.lint import LintContext, effective_values, lint
from orchestrator.deepspeed_config.lint_batch import batch_of
from orchestrator.findings import has_error
from tests.unit.deepspeed_config.drawn import draw
from tests.unit.deepspeed_config.installed import ask


def context(devices: int = 8) -> LintContext:
    return LintContext(version=Version("0.19.8"), num_devices=devices, devices_per_host=devices, accelerator=Accelerator.cpu)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"train_batch_size": "8"}, {"train_batch_size": 8}),
        ({"gradient_clipping": "1e-1"}, {"gradient_clipping": 0.1}),
        ({"wall_clock_breakdown": "False"}, {"wall_clock_breakdown": False}),
        ({"bf16": {"enabled": "true"}}, {"bf16": {"enabled": True}}),
        ({"zero_optimization": {"reduce_bucket_size": "5e8"}}, {"zero_optimization": {"reduce_bucket_size": 500_000_000}}),
        ({"amp": {"enabled": False}, "sparse_gradients": False}, {}),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": -1}}, {"zero_optimization": {"stage": 3}}),
        (
            {"zero_optimization": {"stage": 2, "cpu_offload": True}},
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        ),
        ({"zero_optimization": {"stage": 2, "cpu_offload": False}}, {"zero_optimization": {"stage": 2}}),
        (
            {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}},
            {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}},
        ),
        ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
        ({"zero_optimization": False}, {"zero_optimization": {"stage": 0}}),
        (
            {"zero_optimization": True, "allgather_size": 1000},
            {"zero_optimization": {"stage": 1, "allgather_bucket_size": 1000}},
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}},
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        ),
        ({"zero_optimization.stage": 2}, {"zero_optimization": {"stage": 2}}),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}},
            {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}},
        ),
    ],
)
def test_what_is_meant_is_written(before, after):
    given = deepcopy(before)
    corrected, changes = correct(given, context())
    assert corrected == after
    assert given == before
    assert changes


@pytest.mark.parametrize(
    "values",
    [
        {"zero_optimization": {"stage3_prefetch_bucket_size": 3774873.6}},
        {"zero_optimization": {"stage": 4}},
        {"zero_optimization": {"stage": True}},
        {"zero_optimisation": {"stage": 3}},
        {"amp": {"enabled": True}},
        {"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "cpu"}}},
        {"zero_optimization.stage": 2, "zero_optimization": {"stage": 1}},
        {"gradient_clipping": "auto"},
        {"train_batch_size": "eight"},
        {"zero_optimization": {"reduce_bucket_size": 5e8, "prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 2}},
    ],
)
def test_what_could_mean_two_things_stays(values):
    assert correct(values, context()) == (values, [])


def test_an_older_release_keeps_its_keys():
    old = {"amp": {"enabled": False}}
    earlier = LintContext(version=Version("0.19.6"), num_devices=8, devices_per_host=8)
    assert correct(old, earlier) == (old, [])


def test_deepspeed_accepts_what_is_left_without_errors():
    """Thousands of drawn files: corrected, completed, and read by the installed DeepSpeed, which comes to the same batch."""
    compiled = []
    for case in draw(5, 6000):
        run = context(case["world"])
        corrected, changes = correct(case["values"], run)
        assert bool(changes) == (json.dumps(corrected) != json.dumps(case["values"]))
        assert correct(corrected, run) == (corrected, [])
        effective = effective_values(corrected, run)
        batch = batch_of(effective, run)
        if batch is None or has_error(lint(corrected, run)):
            continue
        completed, _ = complete(corrected, effective, batch)
        compiled.append({"values": completed, "world": case["world"]})
    assert len(compiled) > 2000
    for case, verdict in zip(compiled, ask("judge", compiled), strict=True):
        assert verdict["refusal"] is None, case
        for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"):
            assert verdict["used"][name] == case["values"][name]


def test_the_batch_and_the_clipping_are_written_out():
    run = context()
    values = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}
    effective = effective_values(values, run)
    completed, changes = complete(values, effective, batch_of(effective, run))
    assert completed == {**values, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
    assert [change.field for change in changes] == ["gradient_accumulation_steps", "gradient_clipping"]


def test_with_autotp_the_batch_deepspeed_would_miscount_is_left_out():
    run = context(4)
    values = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "tensor_parallel": {"autotp_size": 2},
        "gradient_clipping": 1.0,
    }
    effective = effective_values(values, run)
    completed, changes = complete(values, effective, batch_of(effective, run))
    assert "train_batch_size" not in completed
    assert [change.field for change in changes] == ["train_batch_size"]
