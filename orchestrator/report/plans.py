"""What ``plan`` tells: the best plan, others that differ in kind, the front of time against memory, what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.config.schema import RunConfig
from orchestrator.planning.search.reasons import against, largest_parts
from orchestrator.planning.search.search import Candidate, SearchResult, chosen_values
from orchestrator.planning.search.strategies import kinds_of, recommended
from orchestrator.report.text import findings_report
from orchestrator.units import format_bytes, format_count, format_duration

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """What is told of a candidate: seconds, devices, memory, and why."""

    candidate: Candidate
    overrides: tuple[str, ...]
    tokens_per_second: float
    days: float
    device_hours: float
    reasons: tuple[str, ...]
    """The largest parts of its step."""
    difference: str
    """What it gives up against the best plan, and what it wins; empty for that one."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plan = self.candidate.plan
        assert plan.layout is not None and plan.partition is not None
        return {
            "overrides": list(self.overrides),
            "hosts": self.candidate.choice.hosts,
            "layout": plan.layout.to_dict(),
            "boundaries": list(plan.partition.boundaries),
            "time": self.candidate.time.to_dict(),
            "tokens_per_second": self.tokens_per_second,
            "days": self.days,
            "device_hours": self.device_hours,
            "device_bytes": self.candidate.device_bytes,
            "headroom_bytes": self.candidate.headroom_bytes,
            "reasons": list(self.reasons),
            "difference": self.difference,
        }


def plan_entry(config: RunConfig, candidate: Candidate, best: Candidate) -> PlanEntry:
    """A candidate with its words, its rate, what a training takes, and why."""
    plan, time = candidate.plan, candidate.time
    assert plan.layout is not None
    rate = time.tokens_per_second_per_device * plan.layout.world_size
    seconds = config.planner.tokens / rate
    return PlanEntry(
        candidate=candidate,
        overrides=tuple(f"{name}={_typed(value)}" for name, value in chosen_values(config, candidate).items()),
        tokens_per_second=rate,
        days=seconds / SECONDS_PER_DAY,
        device_hours=seconds / 3600 * plan.layout.world_size,
        reasons=tuple(largest_parts(candidate)),
        difference="" if candidate is best else against(candidate, best),
    )


def plans_report(
    config: RunConfig,
    result: SearchResult,
    best: PlanEntry | None,
    others: Sequence[PlanEntry],
    front: Sequence[PlanEntry],
    sizes: Sequence[tuple[int, PlanEntry | None]],
    file: Path | None,
) -> list[RenderableType]:
    """Everything for people."""
    report: list[RenderableType] = []
    if best is not None:
        report += [Text(f"the best of {result.num_choices} choices", style="bold"), _table([best, *others])]
        report += [Text(f"    {reason}") for reason in best.reasons]
        report.append(Text(f"    {usual_advice(best)}"))
        report += [Text("to run it:", style="bold"), Text("    " + " ".join(best.overrides))]
        if len(front) > 1:
            report += [Text("more memory free for more time", style="bold"), _table(front)]
        if file is not None:
            report.append(Text(f"written: orchestrator validate experiment={file.stem} --config-dir {file.parent.parent}"))
    if sizes:
        report += [Text(f"{format_count(config.planner.tokens)} tokens on so many hosts", style="bold"), _sizes_table(sizes)]
    if result.refused:
        report.append(Text("refused on the way:", style="bold"))
        report += [Text(f"    {entry.choices} choices   [{entry.rule}]   {entry.example}") for entry in result.refused]
    if result.findings:
        if best is not None or result.refused:
            report.append(Text("whatever the plan, this is wrong as well:", style="bold"))
        report += findings_report(result.findings)
    if best is None:
        report.append(Text("no plan fits", style="bold red"))
    return report


def usual_advice(best: PlanEntry) -> str:
    """What is usually recommended for a model of this size, beside the kinds of parallelism that were found."""
    model = best.candidate.plan.model
    assert model is not None
    strategy = recommended(model.num_parameters)
    found = " + ".join(kinds_of(best.candidate)) or "one device"
    return f"usual advice for {strategy.scale} parameters: {strategy}, since {strategy.reason}; found here: {found}"


def _table(entries: Sequence[PlanEntry]) -> RenderableType:
    names = (
        "step",
        "tokens/s",
        "of peak",
        "hosts",
        "tensor",
        "pipeline",
        "data",
        "batch",
        "ZeRO",
        "offload",
        "recomputed",
        "free",
    )
    table = Table(*names, "against the best", box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in entries:
        choice, time = entry.candidate.choice, entry.candidate.time
        schedule = f" {choice.schedule.value}" if choice.pipeline_parallel_size > 1 else ""
        sequence = " + sequence" if choice.sequence_parallel else ""
        offload = [device.value for device in (choice.optimizer_device, choice.param_device) if device.value != "none"]
        table.add_row(
            format_duration(time.step_seconds),
            format_count(entry.tokens_per_second),
            f"{time.model_flops_utilization:.1%}",
            str(choice.hosts),
            f"{choice.tensor_parallel_size}{sequence}",
            f"{choice.pipeline_parallel_size}{schedule}",
            str(choice.data_parallel_size),
            f"{choice.micro_batch} x {choice.micro_batches}",
            str(choice.zero_stage),
            "+".join(offload) or "-",
            choice.recompute.value,
            format_bytes(entry.candidate.headroom_bytes),
            entry.difference,
        )
    return table


def _sizes_table(sizes: Sequence[tuple[int, PlanEntry | None]]) -> RenderableType:
    table = Table("hosts", "used", "step", "tokens/s", "days", "device hours", box=box.SIMPLE_HEAD, pad_edge=False)
    for count, entry in sizes:
        if entry is None:
            table.add_row(str(count), "-", "no plan fits", "-", "-", "-")
            continue
        table.add_row(
            str(count),
            str(entry.candidate.choice.hosts),
            format_duration(entry.candidate.time.step_seconds),
            format_count(entry.tokens_per_second),
            f"{entry.days:.1f}",
            format_count(entry.device_hours),
        )
    return table


def _typed(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, Enum) else str(value)
