"""A pairwise cover of what decides where DeepSpeed keeps model states, on four ranks, and the plans of its cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

from orchestrator.config.enums import OffloadDevice, OptimizerType, Precision
from orchestrator.config.schema import RunConfig
from orchestrator.planning.plan import Plan
from tests.unit.planning.configurations import cpu_cluster, plan_of, run_config

NONE, CPU, NVME = OffloadDevice.none, OffloadDevice.cpu, OffloadDevice.nvme
FP32, BF16, FP16 = Precision.fp32, Precision.bf16, Precision.fp16
AXES: dict[str, dict[str, dict[str, Any]]] = {
    "stage": {f"stage {stage}": {"zero__stage": stage} for stage in range(4)},
    "offload": {
        "no offload": {},
        "optimizer on cpu": {"offload__optimizer_device": CPU},
        "all on cpu": {"offload__optimizer_device": CPU, "offload__param_device": CPU},
        "optimizer on nvme": {"offload__optimizer_device": NVME, "offload__nvme_path": "/nvme"},
        "all on nvme": {"offload__optimizer_device": NVME, "offload__param_device": NVME, "offload__nvme_path": "/nvme"},
    },
    "layout": {
        "dp 4": {},
        "dp 2, tp 2": {"parallelism__tensor_parallel_size": 2},
        "dp 2, pp 2": {"parallelism__pipeline_parallel_size": 2},
        "tp 2, pp 2": {"parallelism__tensor_parallel_size": 2, "parallelism__pipeline_parallel_size": 2},
    },
    "precision": {
        "fp32": {"precision__dtype": FP32},
        "fp16": {"precision__dtype": FP16},
        "bf16 in fp32": {"precision__dtype": BF16, "precision__grad_accum_dtype": FP32},
        "bf16 in bf16": {"precision__dtype": BF16, "precision__grad_accum_dtype": BF16},
    },
}
Case = tuple[str, ...]
Pair = tuple[tuple[str, str], tuple[str, str]]
MUON = {"optimizer__type": OptimizerType.Muon, "zero__reduce_scatter": False, "training__gradient_clipping": 0.0}
SMALL = {"model__hidden_size": 256, "model__intermediate_size": 512, "model__vocab_size": 1024, "model__num_hidden_layers": 4}
"""Enough layers for two stages."""
STATES_ON_DISK = {
    "model__hidden_size": 1024,
    "model__intermediate_size": 1024,
    "model__vocab_size": 1024,
    "model__num_hidden_layers": 1,
}
ALL_ON_DISK = {**STATES_ON_DISK, "model__hidden_size": 2048}
"""Every matrix's partition has 1 MiB and more in its format: DeepSpeed leaves what is smaller in memory."""


OPTIMIZERS: dict[str, tuple[Case, dict[str, Any]]] = {
    "Adam": (("stage 1", "no offload", "dp 4", "bf16 in fp32"), {"optimizer__type": OptimizerType.Adam}),
    "SGD": (("stage 2", "no offload", "dp 4", "fp16"), {"optimizer__type": OptimizerType.SGD}),
    "SGD without momentum": (
        ("stage 3", "no offload", "dp 4", "fp32"),
        {"optimizer__type": OptimizerType.SGD, "optimizer__momentum": 0.0},
    ),
    "Lion": (("stage 3", "optimizer on cpu", "dp 4", "bf16 in fp32"), {"optimizer__type": OptimizerType.Lion}),
    "Adagrad": (("stage 0", "no offload", "dp 4", "fp32"), {"optimizer__type": OptimizerType.Adagrad}),
    "Adagrad offloaded": (
        ("stage 2", "optimizer on cpu", "dp 4", "bf16 in fp32"),
        {"optimizer__type": OptimizerType.Adagrad},
    ),
    "Muon without ZeRO": (("stage 0", "no offload", "dp 4", "bf16 in bf16"), MUON),
    "Muon in BF16_Optimizer": (("stage 1", "no offload", "dp 4", "bf16 in fp32"), MUON),
    "Muon at stage 1": (("stage 1", "no offload", "dp 4", "bf16 in bf16"), MUON),
    "Muon at stage 2": (("stage 2", "no offload", "dp 4", "bf16 in fp32"), MUON),
    "Muon at stage 2, offloaded": (("stage 2", "optimizer on cpu", "dp 4", "bf16 in fp32"), MUON),
    "Muon at stage 3": (("stage 3", "no offload", "dp 4", "bf16 in fp32"), MUON),
    "Muon at stage 3, offloaded": (("stage 3", "optimizer on cpu", "dp 4", "fp32"), MUON),
}
"""Optimizers other than AdamW, each where its states differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalCase:
    """A case that the planner lets pass."""

    name: str
    config: RunConfig
    plan: Plan


def configuration(case: Case, **changes: Any) -> RunConfig:
    """The run of a case."""
    chosen = {name: value for axis, level in zip(AXES, case, strict=True) for name, value in AXES[axis][level].items()}
    sizes = {"optimizer on nvme": STATES_ON_DISK, "all on nvme": ALL_ON_DISK}.get(case[1], SMALL)
    return run_config(
        **sizes,
        model__num_attention_heads=8,
        model__num_key_value_heads=4 if case[1] == "all on nvme" else 8,
        cluster=cpu_cluster(devices_per_host=4, precisions=[FP32, BF16, FP16]),
        data__sequence_length=64,
        training__gradient_accumulation_steps=2,
        training__train_micro_batch_size_per_gpu=1,
        # nothing is gathered ahead or kept gathered
        zero__stage3_prefetch_bucket_size=0,
        zero__stage3_max_live_parameters=0,
        zero__stage3_max_reuse_distance=0,
        zero__stage3_param_persistence_threshold=0,
        zero__reduce_bucket_size=1_000_000,
        offload__param_buffer_size=2_000_000,
        offload__param_max_in_cpu=0,
        **chosen,
        **changes,
    )


@cache
def legal_cases() -> Mapping[Case, LegalCase]:
    """All combinations that the planner lets pass."""
    legal = {}
    for case in product(*AXES.values()):
        config = configuration(case)
        plan = plan_of(config)
        if plan.verdict == "feasible":
            legal[case] = LegalCase(name=", ".join(case), config=config, plan=plan)
    return legal


def optimizer_cases() -> list[LegalCase]:
    """The cases of ``OPTIMIZERS``."""
    cases = []
    for name, (case, changes) in OPTIMIZERS.items():
        config = configuration(case, **changes)
        cases.append(LegalCase(name=name, config=config, plan=plan_of(config)))
    return cases


def pairs(case: Case) -> set[Pair]:
    """The pairs of levels in a case."""
    return set(combinations(zip(AXES, case, strict=True), 2))


def illegal_pairs() -> set[tuple[str, str]]:
    """Pairs of levels that occur in no legal case."""
    every = set().union(*(pairs(case) for case in product(*AXES.values())))
    legal = set().union(*(pairs(case) for case in legal_cases()))
    return {(first, second) for (_, first), (_, second) in every - legal}


def pairwise_cover() -> list[LegalCase]:
    """Legal cases in which every legal pair occurs: always the one that adds most."""
    missing = set().union(*(pairs(case) for case in legal_cases()))
    cover = []
    while missing:
        best = max(legal_cases(), key=lambda case: len(pairs(case) & missing))
        cover.append(legal_cases()[best])
        missing -= pairs(best)
    return cover
