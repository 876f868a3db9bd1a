"""The optimizer: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.enums import OffloadDevice, OptimizerType, Precision
from orchestrator.findings import has_error
from tests.unit.planning.configurations import cpu_cluster, plan_of, run_config
from tests.unit.planning.rules.broken import ERROR, INFO, PP, TP, Broken, check, each, pipeline, tensor

NVME, CPU = OffloadDevice.nvme, OffloadDevice.cpu


def optimizer(kind: OptimizerType, **changes: Any) -> dict[str, Any]:
    return {"optimizer__type": kind} | changes


CASES = [
    Broken(
        "optimizer-device",
        ERROR,
        "optimizer.type",
        optimizer(OptimizerType.Lion, cluster=cpu_cluster()),
        ("Lion", "CPU"),
        ("offload.optimizer_device=cpu",),
    ),
    Broken(
        "optimizer-adagrad",
        ERROR,
        "optimizer.type",
        optimizer(OptimizerType.Adagrad, zero__stage=2),
        ("zero.stage=2", "bf16"),
        ("offload.optimizer_device=cpu",),
    ),
    Broken(
        "optimizer-adagrad",
        ERROR,
        "optimizer.type",
        optimizer(OptimizerType.Adagrad, zero__stage=1, precision__dtype=Precision.fp32),
        (),
        ("zero.stage=0",),
    ),
    Broken("optimizer-muon-layout", ERROR, TP, optimizer(OptimizerType.Muon, **tensor(2)), ("whole matrices",), (f"{TP}=1",)),
    Broken("optimizer-muon-layout", ERROR, PP, optimizer(OptimizerType.Muon, **pipeline(2)), ("whole matrices",), (f"{PP}=1",)),
    Broken(
        "optimizer-muon-reduce-scatter",
        ERROR,
        "zero.reduce_scatter",
        optimizer(OptimizerType.Muon, zero__stage=3),
        (),
        ("zero.reduce_scatter=false",),
    ),
    Broken(
        "optimizer-muon-clipping",
        ERROR,
        "training.gradient_clipping",
        optimizer(OptimizerType.Muon, zero__stage=2),
        ("1.0", "update"),
        ("training.gradient_clipping=0",),
    ),
    Broken(
        "optimizer-ratio",
        ERROR,
        "offload.optimizer_ratio",
        optimizer(OptimizerType.Lion, zero__stage=3, offload__optimizer_device=CPU, offload__optimizer_ratio=0.5),
        ("0.5", "Lion"),
        ("offload.optimizer_ratio=1",),
    ),
    Broken(
        "optimizer-nvme",
        ERROR,
        "offload.optimizer_device",
        optimizer(OptimizerType.SGD, zero__stage=3, offload__optimizer_device=NVME, offload__nvme_path="/nvme"),
        ("nvme", "SGD"),
        ("offload.optimizer_device=cpu",),
    ),
    Broken(
        "optimizer-adam-lr",
        INFO,
        "optimizer.adam_lr",
        optimizer(OptimizerType.AdamW, optimizer__adam_lr=1e-3),
        ("0.001",),
        ("optimizer.adam_lr=null",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


@pytest.mark.parametrize("kind", OptimizerType)
@pytest.mark.parametrize("stage", range(4))
def test_every_optimizer_goes_with_every_stage_on_gpus_with_what_it_needs(kind, stage):
    """Adagrad offloaded, where ZeRO is; Muon without reduce-scatter and clipping."""
    needs: dict[str, Any] = {}
    if kind is OptimizerType.Adagrad:
        needs = {"offload__optimizer_device": CPU} if stage else {"precision__dtype": Precision.fp32}
    if kind is OptimizerType.Muon:
        needs = {"zero__reduce_scatter": stage < 3, "training__gradient_clipping": 0.0}
    assert not has_error(plan_of(run_config(**optimizer(kind, zero__stage=stage, **needs))).findings)
