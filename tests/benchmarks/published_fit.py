"""Whether a published run fits its devices, by the memory model that ``memory_accuracy`` judges."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum

from orchestrator.config.schema import PlannerConfig
from orchestrator.planning.kernels import CrossEntropyKernel
from orchestrator.planning.memory.levels import OVERHEADS
from tests.benchmarks.published_memory import case_of
from tests.benchmarks.published_prediction import predict_case
from tests.benchmarks.published_rows import Row
from tests.benchmarks.published_throughput import Run, System

MARGIN = PlannerConfig().memory_margin


class Fit(StrEnum):
    """What the planner says of a run's memory."""

    accepted = "accepted"
    flagged = "flagged"
    """It fits with less free than the planner's margin."""
    refused = "refused"
    unknown = "unknown"


def device_need_bytes(run: Run) -> int | None:
    """What the fullest rank of a run takes of its device; ``None`` where there is no estimate.

    Megatron's loss of 2021 and 2022 kept fp32 logits, a copy less their largest and its exponential beside the 16-bit ones.
    """
    try:
        case = case_of(memory_row(run))
        if run.system in (System.megatron, System.deepspeed):
            kernels = replace(case.passed.kernels, cross_entropy=CrossEntropyKernel.unfused)
            case = replace(case, passed=replace(case.passed, kernels=kernels))
        return predict_case(case).levels(OVERHEADS).device_bytes
    except (ArithmeticError, AssertionError, LookupError, ValueError):
        return None


def states_memory(row: Row) -> bool:
    """Whether a row states what most of its memory depends on beside the layout: what is recomputed."""
    return row.text("recompute") != ""


def fit_of(run: Run) -> Fit:
    """What the planner says of a run."""
    needed = device_need_bytes(run)
    if needed is None:
        return Fit.unknown
    capacity = run.cluster.device_memory_bytes
    return Fit.refused if needed > capacity else Fit.flagged if needed > capacity * (1 - MARGIN) else Fit.accepted


def peak_gib(row: Row) -> float | None:
    """The peak that a row's notes state, GiB."""
    stated = re.search(r"(?:peak gpu |gpu |peak )memory (\d+(?:\.\d+)?) ?(gib|gb)", row.text("notes"))
    if stated is None:
        return None
    return float(stated.group(1))


def memory_row(run: Run) -> Row:
    """The run as a row of published memory readings."""
    fields = {
        "source": SOURCES[run.system],
        "grad_accum": str(run.layout.gradient_accumulation_steps),
        "zero_stage": str(run.zero_stage),
        "recompute": run.recompute.value,
        "sequence_parallel": "yes" if run.sequence_parallel else "no",
        "precision": _precision(run),
        "dp": str(run.layout.data_parallel_size),
        "offload_optimizer": "cpu" if offloads_optimizer(run.row) else "",
        "offload_param": "cpu" if offloads_parameters(run.row) else "",
        "grad_dtype": "fp32" if "fp32 gradient accumulation" in run.row.text("notes") else "",
    }
    notes = {"attn": "flash" if run.fused_attention else "unfused", "cp": str(run.context_parallel_size)}
    if run.num_chunks > 1:
        notes["vpp"] = str(run.num_chunks)
    if run.system is System.fsdp:
        notes["sharding"] = "full_shard"
    return replace(run.row, fields={**run.row.fields, **fields}, notes=notes)


def _precision(run: Run) -> str:
    stated = run.row.text("precision")
    if stated in ("fp32", "float32", "tf32", "32"):
        return "fp32"
    return "bf16" if "bf16" in stated or run.system is System.fsdp else "fp16"


SOURCES = {
    System.megatron: "megatron-lm",
    System.megatron_core: "megatron-lm",
    System.deepspeed: "deepspeed",
    System.fsdp: "fsdp",
}
"""Words by which the memory benchmark knows who trains."""


def offloads_optimizer(row: Row) -> bool:
    """Whether the notes say that the optimizer is on the CPU."""
    return bool(re.search(r"optimizer offload y|full (cpu )?offload|with cpu offload", row.text("notes")))


def offloads_parameters(row: Row) -> bool:
    """Whether the notes say that the parameters are on the CPU."""
    return bool(re.search(r"parameter offload y|full (cpu )?offload|with cpu offload", row.text("notes")))
