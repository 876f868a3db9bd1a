"""What people read: tables and lines for the terminal, made from plans, findings and results."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.findings import Finding, RuleEntry, Severity
from orchestrator.launch.ending.diagnosis import Diagnosis, Occurrence
from orchestrator.planning.capacity import DEVICE_MEMORY, HOST_MEMORY, NVME_CAPACITY
from orchestrator.planning.fixes import Fix
from orchestrator.planning.plan import Plan, partition_entry
from orchestrator.report.accuracy import estimate_note
from orchestrator.report.data import data_report
from orchestrator.report.step_time import time_report
from orchestrator.units import format_bytes, format_count, format_seconds

_STYLES = {Severity.error: "bold red", Severity.warning: "yellow", Severity.info: "cyan"}
_CAPACITIES = {DEVICE_MEMORY: "device memory", HOST_MEMORY: "host memory", NVME_CAPACITY: "NVMe"}
_RULES_WIDTH = 80
_OTHERS = 8
_ORDER = {Severity.error: 0, Severity.warning: 1, Severity.info: 2}


def plan_report(plan: Plan) -> list[RenderableType]:
    """Model, layout, data, stages of a pipeline, memory of every class of ranks and host, time, findings, verdict."""
    report: list[RenderableType] = [_summary(plan), *data_report(plan.data)]
    if plan.partition is not None and len(plan.partition.stages) > 1:
        report.append(_partition_table(plan))
    if plan.memory is not None:
        report += [_device_table(plan), _phase_table(plan), _host_table(plan), *_checkpoint_line(plan)]
        report += time_report(plan.time, plan.time_unknown)
    return [*report, *findings_report(plan.findings), _verdict(plan)]


def findings_report(findings: Sequence[Finding]) -> list[RenderableType]:
    """The findings, errors first; nothing when there are none."""
    lines: list[RenderableType] = []
    for finding in sorted(findings, key=lambda finding: _ORDER[finding.severity]):
        severity = (f"{finding.severity.value}: ", _STYLES[finding.severity])
        lines.append(Text.assemble(severity, (finding.field, "bold"), f": {finding.message}"))
        lines.append(Text(f"    fix: {finding.fix}   [{finding.rule}]"))
    return lines


def fixes_report(plan: Plan, fixes: Sequence[Fix]) -> list[RenderableType]:
    """The changes that make an infeasible plan fit, each on a line that can be pasted."""
    if plan.verdict != "infeasible":
        return []
    if not fixes:
        return [Text("no change that was tried makes it fit", style="bold")]
    lines: list[RenderableType] = [Text("what would fit, the cheapest in speed first:", style="bold")]
    return lines + [Text(f"    {' '.join(fix.overrides)}    ({fix.description})") for fix in fixes]


def rules_report(entries: Sequence[RuleEntry]) -> list[RenderableType]:
    """All rules by subject, in 80 columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(max_width=_RULES_WIDTH - max(len(entry.name) for entry in entries) - len("  warning") - 4)
    subject = ""
    for entry in entries:
        if entry.subject != subject:
            subject = entry.subject
            table.add_row(Text(subject, style="bold"))
        table.add_row(f"  {entry.name}", Text(entry.severity.value, style=_STYLES[entry.severity]), entry.description)
    counts = Counter(entry.severity for entry in entries)
    listed = ", ".join(f"{counts[severity]} {severity.value}" for severity in Severity)
    return [table, Text(f"{len(entries)} rules: {listed} at worst\none in full: orchestrator rules NAME")]


def rule_page(entry: RuleEntry) -> RenderableType:
    """One rule in full."""
    heading = Text.assemble((entry.name, "bold"), "   ", (entry.severity.value, _STYLES[entry.severity]), f"   {entry.subject}")
    return Text("\n").join(
        [heading, Text(f"  holds when: {entry.description}"), Text(f"  {entry.reason or entry.description}")]
    )


def command_report(shell: str, attempt_path: Path) -> list[RenderableType]:
    """The exact launcher command, on one line of its own so that it can be copied."""
    return [
        Text(f"attempt: {attempt_path}"),
        Text("command:", style="bold"),
        Text(shell, no_wrap=True, overflow="ignore", end="\n"),
    ]


def upload_report(command: str | None) -> list[RenderableType]:
    """How what W&B recorded on the disk gets to its server; nothing if there is nothing to upload."""
    return [] if command is None else [Text(f"W&B upload: {command}")]


def result_report(result: Mapping[str, Any], attempt_path: Path, upload: str | None) -> list[RenderableType]:
    """How a run ended well, and where everything lies; ``upload`` is the command that brings the rest to W&B."""
    table = _plain_table("result", "")
    rate = result["tokens_per_second"]
    rows = {
        "steps": f"{result['steps']} in {format_seconds(result['seconds'])}",
        "throughput": "-" if rate is None else f"{format_count(rate)} tokens/s",
        "final loss": _number(result["final_loss"]),
        "held-out loss": _number(result["held_out_loss"]),
        **{f"held-out loss of {name}": _number(loss) for name, loss in result["held_out_losses"].items()},
        **({} if result["best"] is None else {"best": _best(result["best"])}),
        "entropy of the token frequencies": _number(result["unigram_entropy"]),
        "memory of the fullest rank": _memory(result["memory"]),
        "metrics": str(attempt_path / "metrics.jsonl"),
        "checkpoint": result["checkpoint"] or "none",
    }
    if result.get("profile"):
        rows["profile"] = result["profile"]
    if result["wandb"]:
        rows["W&B"] = result["wandb"]["url"] or result["wandb"]["directory"]
    for name, value in rows.items():
        table.add_row(name, value)
    return [table, *upload_report(upload)]


def diagnosis_report(diagnosis: Diagnosis, log_file: Path) -> list[RenderableType]:
    """What a log says of a failure, and the lines it says it in."""
    first = diagnosis.first
    report: list[RenderableType] = []
    if first is not None:
        report.append(Text.assemble(("first to fail: ", "bold red"), f"{_place(first)}, line {first.line.number} of the log"))
    report.append(Text("\n".join(line.text for line in diagnosis.context)))
    if first is None:
        report.append(Text("nothing in it is known as the cause of a failure; these are its last lines"))
    report += _advice(diagnosis)
    others = [f"{_place(other)}: {other.cause.meaning} (line {other.line.number})" for other in diagnosis.others]
    if others:
        listed = others[:_OTHERS] + [f"and {len(others) - _OTHERS} more"] * (len(others) > _OTHERS)
        report.append(Text("\n    ".join(["others said:", *listed])))
    return [*report, Text(f"log: {log_file}")]


def _advice(diagnosis: Diagnosis) -> list[RenderableType]:
    cause = diagnosis.first.cause if diagnosis.first is not None else None
    return [] if cause is None else [Text(f"it means: {cause.meaning}", style="bold"), Text(f"    fix: {cause.fix}")]


def _place(occurrence: Occurrence) -> str:
    rank, host = occurrence.line.rank, occurrence.line.host
    who = "the launcher or a rank that did not name itself" if rank is None else f"rank {rank}"
    return who if host is None else f"{who} on {host}"


def readiness(ready: bool, hostname: str) -> Text:
    """The last line of ``doctor``."""
    return Text(f"{hostname} is ready", style="bold green") if ready else Text(f"{hostname} is not ready", style="bold red")


def _summary(plan: Plan) -> RenderableType:
    table = _plain_table("plan", "")
    if plan.model is not None:
        model = plan.model
        shape = f"{model.num_hidden_layers} layers x {model.hidden_size}, vocabulary {model.vocab_size}"
        table.add_row("model", f"{model.name}: {format_count(model.num_parameters)} parameters, {shape}")
    if plan.cluster is not None:
        cluster = plan.cluster
        table.add_row("cluster", f"{cluster.name}: {len(cluster.hosts)} host(s), {cluster.num_devices} x {cluster.device_name}")
    if plan.layout is not None:
        layout = plan.layout
        inner = f"pipeline {layout.pipeline_parallel_size} x tensor {layout.tensor_parallel_size}"
        table.add_row("layout", f"data {layout.data_parallel_size} x {inner} = {layout.world_size} ranks")
        parts = f"{layout.train_micro_batch_size_per_gpu} x accumulation {layout.gradient_accumulation_steps}"
        table.add_row("batch", f"{layout.train_batch_size} sequences = micro-batch {parts} x data {layout.data_parallel_size}")
    settings = plan.settings
    table.add_row("precision", f"{settings.dtype.value}, gradients accumulated in {settings.grad_accum_dtype.value}")
    table.add_row("ZeRO", f"stage {settings.zero_stage}")
    return table


def _partition_table(plan: Plan) -> RenderableType:
    """What each stage of a pipeline holds, and what its ranks need; the numbers are those of ``partition_boundaries``."""
    assert plan.partition is not None
    assert plan.model is not None
    partition = plan.partition
    table = _plain_table("pipeline stage", "ranks", "layers", "what they are", "parameters", "memory of one rank")
    for index, (stage, entry) in enumerate(
        zip(partition.stages, partition_entry(plan.model, partition)["stages"], strict=True)
    ):
        coordinate = entry["pipe"]
        memory = "-" if plan.memory is None else format_bytes(plan.memory.device[coordinate].device_bytes)
        table.add_row(
            f"{index}",
            _rank_range(plan.layout.stage_ranks(coordinate)) if plan.layout is not None else "-",
            f"{stage.start}-{stage.stop - 1}" if stage.stop - stage.start > 1 else f"{stage.start}",
            ", ".join(
                f"{count} x {name}" if count > 1 else name
                for name, count in Counter(partition.layer_names[stage.start : stage.stop]).items()
            ),
            format_count(entry["parameters"]),
            memory,
        )
    table.caption = f"parallelism.partition_boundaries=[{','.join(map(str, partition.boundaries))}]"
    table.caption_justify = "left"
    return table


def _device_table(plan: Plan) -> RenderableType:
    assert plan.memory is not None
    table = _plain_table("memory of one rank", "ranks", "allocated", "reserved", "device", "capacity", "the largest components")
    for entry in plan.memory.device:
        largest = sorted(entry.components.items(), key=lambda item: -item[1])[:4]
        described = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest if size)
        sizes = (entry.allocated_bytes, entry.reserved_bytes, entry.device_bytes, entry.capacity_bytes)
        table.add_row(f"stage {entry.stage}", _rank_range(entry.ranks), *(format_bytes(size) for size in sizes), described)
    return table


def _phase_table(plan: Plan) -> RenderableType:
    """What a device shows in each phase, and between what sizes a monitor may read the peak."""
    assert plan.memory is not None
    phases = list(plan.memory.device[0].phases)
    table = _plain_table("device, by phase", *(phase.value for phase in phases), "a monitor may show")
    for entry in plan.memory.device:
        sizes = [format_bytes(entry.phases[phase].levels.device_bytes) for phase in phases]
        low, high = entry.levels.device_interval
        table.add_row(f"stage {entry.stage}", *sizes, f"{format_bytes(low)} to {format_bytes(high)}")
    return table


def _checkpoint_line(plan: Plan) -> list[RenderableType]:
    """The disk that checkpoints take; nothing where none is written."""
    assert plan.memory is not None
    disk = plan.memory.checkpoints
    if disk.at_once == 0:
        return []
    one = f"a checkpoint takes {format_bytes(disk.checkpoint_bytes)}"
    return [Text(f"{one}; {disk.kept} kept, {format_bytes(disk.peak_bytes)} on disk at most")]


def _host_table(plan: Plan) -> RenderableType:
    assert plan.memory is not None
    table = _plain_table("memory of one host", "at start", "in a step", "saving", "capacity", "NVMe")
    nvme = {entry.host: entry for entry in plan.memory.nvme}
    seen: set[tuple[int, ...]] = set()
    for entry in plan.memory.host:
        sizes = (entry.start_bytes, entry.step_bytes, entry.save_bytes, entry.capacity_bytes)
        if sizes in seen:
            continue
        seen.add(sizes)
        disk = nvme.get(entry.host)
        table.add_row(
            entry.host, *(format_bytes(size) for size in sizes), format_bytes(disk.bytes) if disk and disk.bytes else "-"
        )
    return table


def _rank_range(ranks: Sequence[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _verdict(plan: Plan) -> Text:
    style = "bold yellow" if plan.fits_narrowly else "bold green" if plan.fits else "bold red"
    note = f" ({estimate_note()})" if plan.memory is not None else ""
    return Text.assemble(("verdict: ", "bold"), (plan.verdict, style), _limits(plan), note)


def _limits(plan: Plan) -> str:
    """What decides the verdict, where it is a capacity."""
    named = [_CAPACITIES[finding.rule] for finding in plan.findings if finding.rule in _CAPACITIES and _decides(plan, finding)]
    if not named:
        return ""
    return f", but with little room: {' and '.join(named)}" if plan.fits else f": {' and '.join(named)} limits"


def _decides(plan: Plan, finding: Finding) -> bool:
    if plan.verdict == "infeasible":
        return finding.severity is Severity.error
    return plan.fits_narrowly and finding.severity is Severity.warning


def _plain_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _best(best: Mapping[str, Any]) -> str:
    return f"{best['held_out_loss']:.4f} after step {best['step']}, {best['checkpoint'] or 'not kept'}"


def _memory(memory: Mapping[str, Any]) -> str:
    return f"{format_bytes(memory['measured_bytes'])} measured, {format_bytes(memory['predicted_bytes'])} predicted"


def escape_what_cannot_be_shown() -> None:
    """From now on letters that the encoding of the output lacks are written as escapes, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def to_json(payload: Mapping[str, Any]) -> str:
    """The JSON object of ``output=json``."""
    return json.dumps(payload, indent=2)
