"""``estimate=exact``: the components of a plan counted in real engines, beside their closed forms.

A process that has torch builds the engine of the first rank of each class of equal ranks on this machine's CPU, with a
process group in which the other ranks are only pretended.
"""

from __future__ import annotations

import copy
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from orchestrator.commands import validate
from orchestrator.commands.launch import run_contents
from orchestrator.commands.planned import plan_run
from orchestrator.commands.result import CommandResult
from orchestrator.config.enums import Accelerator, AttentionImplementation
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import OptimizerImplementation, resolve_settings
from orchestrator.findings import Finding, error
from orchestrator.launch.command import LaunchCommand
from orchestrator.launch.machine import memory_limit_bytes
from orchestrator.launch.processes import meaning, supervise
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.side_by_side import ClosedForm
from orchestrator.planning.plan import Plan, closed_forms_of
from orchestrator.report.exact import exact_table
from orchestrator.run_dir import RESULT, CommandWords, RunContents, read_json, start_run, write_json
from orchestrator.units import GIB, format_bytes

WORKER = "orchestrator.worker.exact"
NEEDED = ("torch", "deepspeed", "transformers")
MOST_RANKS = 4
"""Classes of equal ranks that are built: the fullest."""
TIME_LIMIT_SECONDS = 900
PROCESS_BYTES = 1 * GIB
"""The interpreter with torch, DeepSpeed and transformers."""
CONSTRUCTION = 1.5
"""The most memory while an engine is built, beside what it holds afterwards: parameters are flattened, gradients converted."""
RULE = "exact-estimate"
Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMemory:
    """What was counted, or why nothing was."""

    entries: tuple[dict[str, Any], ...]
    findings: tuple[Finding, ...] = ()


def run(config: RunConfig, echo: Echo) -> CommandResult:
    """``validate`` with ``estimate=exact``: the report of the plan, and ``memory.exact``. ``echo`` receives the progress."""
    plan = plan_run(config)
    if plan.memory is None or plan.verdict == "invalid":
        return validate.report(config, plan)
    exact = count_exactly(config, plan, echo)
    result = validate.report(config, plan.with_findings(exact.findings))
    if not exact.entries:
        return result
    payload = {**result.payload, "memory": {**result.payload["memory"], "exact": list(exact.entries)}}
    return replace(result, payload=payload, text=[*result.text, exact_table(exact.entries)])


def count_exactly(config: RunConfig, plan: Plan, echo: Echo) -> ExactMemory:
    """Build the engines of ``plan`` and count. ``plan`` has an estimate; findings say what stands against it."""
    classes = sorted(closed_forms_of(config, plan), key=lambda entry: -entry.resident_bytes)[:MOST_RANKS]
    refused = _refusals(config, plan, classes)
    if refused:
        return ExactMemory(entries=(), findings=tuple(refused))
    scratch = Path(tempfile.mkdtemp(prefix="orchestrator-exact-"))
    try:
        return _counted(config, plan, classes, scratch, echo)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refusals(config: RunConfig, plan: Plan, classes: list[ClosedForm]) -> list[Finding]:
    findings = []
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        message = f"exact, and {', '.join(missing)} is not installed here"
        findings.append(error(RULE, "estimate", message, "pip install -e '.[train]', or set estimate=closed_form"))
    if config.model.attention_implementation is AttentionImplementation.flash_attention_2:
        message = "exact builds the model on a CPU, where there is no flash_attention_2"
        fix = "set model.attention_implementation=sdpa, which keeps the same, or estimate=closed_form"
        findings.append(error(RULE, "estimate", message, fix))
    if plan.settings.optimizer_implementation is OptimizerImplementation.fused_lion:
        message = "exact builds the optimizer on a CPU, and DeepSpeed's Lion has a CUDA kernel only"
        findings.append(error(RULE, "estimate", message, "set offload.optimizer_device=cpu, or estimate=closed_form"))
    needed = PROCESS_BYTES + int(CONSTRUCTION * max((entry.resident_bytes for entry in classes), default=0))
    available = min(psutil.virtual_memory().available, memory_limit_bytes())
    if needed > available:
        message = (
            f"exact needs {format_bytes(needed)} of RAM for the fullest rank, this host has {format_bytes(available)} free"
        )
        findings.append(error(RULE, "estimate", message, "set estimate=closed_form, or use a host with more RAM"))
    return findings


def _counted(config: RunConfig, plan: Plan, classes: list[ClosedForm], scratch: Path, echo: Echo) -> ExactMemory:
    assert plan.layout is not None
    attempt = start_run(scratch / "run", contents_on_cpu(config, plan, scratch))
    request = scratch / "request.json"
    write_json(
        request,
        {
            "attempt": str(attempt.path),
            "ranks": [entry.rank for entry in classes],
            "micro_batch": plan.layout.train_micro_batch_size_per_gpu,
            "sequence_length": config.data.sequence_length,
            "in_flight": [list(entry.in_flight) for entry in classes],
        },
    )
    command = LaunchCommand(
        argv=("timeout", str(TIME_LIMIT_SECONDS), sys.executable, "-m", WORKER, str(request)),
        environment={"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "RANK": "0"},
        working_directory=scratch,
    )
    outcome = supervise(command, log_file=scratch / "exact.log", echo=echo, stop_seconds=config.launcher.stop_seconds)
    if outcome.exit_code == 0 and not outcome.interrupted and (scratch / RESULT).exists():
        counted = {entry["rank"]: entry["components"] for entry in read_json(scratch / RESULT)["ranks"]}
        return ExactMemory(entries=tuple(_entry(closed, counted[closed.rank]) for closed in classes))
    message = f"exact failed: {_reason(outcome.exit_code, scratch) if not outcome.interrupted else 'interrupted'}"
    return ExactMemory(entries=(), findings=(error(RULE, "estimate", message, "set estimate=closed_form"),))


def _reason(exit_code: int, scratch: Path) -> str:
    if exit_code == 124:
        return f"it took longer than {TIME_LIMIT_SECONDS} seconds"
    failures = [read_json(path) for path in scratch.glob("failure_rank_*.json")]
    return str(failures[0]["error"]) if failures else meaning(exit_code)


def contents_on_cpu(config: RunConfig, plan: Plan, scratch: Path) -> RunContents:
    """The run on a CPU with the smallest batch that accumulates where the run does; everything else is as planned."""
    assert plan.layout is not None
    small = copy.deepcopy(config)
    small.run_dir = str(scratch / "run")
    small.cluster.accelerator = Accelerator.cpu
    if small.offload.nvme_path is not None:
        small.offload.nvme_path = str(scratch / "nvme")
        Path(small.offload.nvme_path).mkdir()
    accumulation = min(plan.layout.gradient_accumulation_steps, 2)
    layout = ParallelLayout(
        tensor_parallel_size=plan.layout.tensor_parallel_size,
        pipeline_parallel_size=plan.layout.pipeline_parallel_size,
        data_parallel_size=plan.layout.data_parallel_size,
        train_batch_size=accumulation * plan.layout.data_parallel_size,
        train_micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=accumulation,
    )
    return run_contents(small, replace(plan, layout=layout, settings=resolve_settings(small)), CommandWords())


def _entry(closed: ClosedForm, counted: Mapping[str, int]) -> dict[str, Any]:
    """One class of equal ranks, component by component."""
    names = [*closed.components, *(name for name in counted if name not in closed.components)]
    components = {
        name: {"closed_form_bytes": closed.components.get(name, 0), "exact_bytes": counted.get(name, 0)} for name in names
    }
    return {"stage": closed.stage, "rank": closed.rank, "components": components}
