"""Options that nothing looks at: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import OffloadDevice, Precision
from tests.unit.planning.configurations import plan_of, run_config
from tests.unit.planning.rules.broken import INFO, WARNING, Broken, check, each

CPU = OffloadDevice.cpu

CASES = [
    Broken(
        "zero-unused",
        WARNING,
        "zero.stage3_max_live_parameters",
        {"zero__stage": 2, "zero__stage3_max_live_parameters": 10**8},
        ("100000000 has no effect", "zero.stage=2"),
        ("zero.stage3_max_live_parameters=1000000000",),
    ),
    Broken(
        "zero-unused",
        WARNING,
        "zero.allgather_bucket_size",
        {"zero__stage": 3, "zero__allgather_bucket_size": 10**8},
        ("zero.stage=3",),
        ("zero.allgather_bucket_size=500000000",),
    ),
    Broken(
        "zero-unused",
        WARNING,
        "zero.reduce_bucket_size",
        {"zero__stage": 1, "zero__reduce_bucket_size": 10**8},
        ("the optimizer of bf16 at zero.stage=1",),
        ("zero.reduce_bucket_size=500000000",),
    ),
    Broken(
        "zero-unused",
        WARNING,
        "zero.overlap_comm",
        {"zero__stage": 0, "zero__overlap_comm": True},
        ("true has no effect", "zero.stage=0"),
        ("zero.overlap_comm=null",),
    ),
    Broken(
        "zero-contiguous-gradients",
        WARNING,
        "zero.contiguous_gradients",
        {"zero__stage": 2, "zero__contiguous_gradients": False, "offload__optimizer_device": CPU},
        ("false is not kept", "cpu"),
        ("zero.contiguous_gradients=true",),
    ),
    Broken(
        "offload-unused",
        INFO,
        "offload.pin_memory",
        {"offload__pin_memory": False},
        ("nothing is offloaded",),
        ("offload.pin_memory=true",),
    ),
    Broken(
        "offload-unused",
        INFO,
        "offload.param_buffer_size",
        {"zero__stage": 3, "offload__param_device": CPU, "offload__param_buffer_size": 10**7},
        ("offload.param_device=cpu", "NVMe"),
        ("offload.param_buffer_size=100000000",),
    ),
    Broken(
        "loss-scale-unused",
        INFO,
        "precision.hysteresis",
        {"precision__hysteresis": 4},
        ("bf16 scales no loss",),
        ("precision.hysteresis=2",),
    ),
    Broken(
        "loss-scale-unused",
        INFO,
        "precision.initial_scale_power",
        {"precision__dtype": Precision.fp16, "precision__loss_scale": 128.0, "precision__initial_scale_power": 12},
        ("precision.loss_scale=128 is fixed",),
        ("precision.initial_scale_power=16",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


@pytest.mark.parametrize(
    "changes",
    [
        {"zero__stage": 3, "zero__sub_group_size": 10**8, "zero__stage3_max_live_parameters": 10**8},
        {"zero__stage": 2, "zero__reduce_bucket_size": 10**8, "zero__allgather_bucket_size": 10**8, "zero__overlap_comm": True},
        {"zero__stage": 1, "zero__allgather_bucket_size": 10**8},
        {"zero__stage": 1, "precision__dtype": Precision.fp16, "zero__reduce_bucket_size": 10**8},
        {"zero__stage": 0, "zero__overlap_comm": False},
        {"zero__stage": 2, "offload__optimizer_device": CPU, "offload__pin_memory": False},
    ],
)
def test_options_that_are_used_are_not_complained_of(changes):
    assert plan_of(run_config(**changes)).findings == ()
