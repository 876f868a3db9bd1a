"""``plan``: what is the fastest way to train this model on these hosts that fits?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.commands.experiment_file import file_findings, write_experiment
from orchestrator.commands.planned import hosts_of
from orchestrator.commands.pretrained import with_pretrained_shape
from orchestrator.commands.result import OK, REFUSED, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error, has_error
from orchestrator.launch.machine import memory_limit_bytes
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.search.search import SearchResult, chosen_values, configured, search
from orchestrator.report.plans import PlanEntry, plan_entry, plans_report, usual_advice

HELP = """Find the fastest plan that fits a fixed global batch: layout, schedule, ZeRO, offload, micro-batch, recomputation.

Examples:
  orchestrator plan model=llama_2_7b cluster=dgx_a100_80 training.train_batch_size=512
  orchestrator plan model=llama_3_70b cluster=dgx_h100 cluster.hosts=32 planner.fix.tp=8
  orchestrator plan experiment=llama_2_70b_64_hosts planner.objective=cost
  orchestrator plan model=llama_3_70b cluster=dgx_h100 training.train_batch_size=1024 planner.hosts=1..64
  orchestrator plan model=llama_3_8b cluster=dgx_h100 planner.apply=mine/experiment/best.yaml"""

MOST_COUNTS = 64


def run(config: RunConfig, words: Sequence[str]) -> CommandResult:
    """Search and report. ``words`` are the overrides, which ``planner.apply`` writes down again.

    Raises:
        ConfigurationError: the hosts to compare or the file to write make no sense.
    """
    target = None if config.planner.apply is None else Path(config.planner.apply)
    problems = file_findings(target) if target is not None else []
    counts, count_problems = host_range(config.planner.hosts)
    if problems or count_problems:
        raise ConfigurationError([*problems, *count_problems])
    result = _searched(config)
    best = None if result.best is None else plan_entry(config, result.best, result.best)
    if target is not None and best is not None:
        values = chosen_values(config, best.candidate)
        write_experiment(target, words, values, title=f"{config.model.name} on {config.cluster.name}, by orchestrator plan")
    compared = [(count, _searched(config, hosts=count, best_only=True)) for count in counts]
    return _result(config, result, best, compared, target)


def with_choice(config: RunConfig) -> tuple[RunConfig, PlanEntry]:
    """``config`` as the best plan has it, for ``parallelism=auto``.

    Raises:
        ConfigurationError: nothing fits, or the search lacks a fact.
    """
    result = _searched(config, best_only=True)
    if result.best is None:
        refused = "; ".join(f"{entry.choices} by {entry.rule}: {entry.example}" for entry in result.refused)
        nothing = error(
            "plan-nothing",
            "parallelism.auto",
            f"no layout fits; of {result.num_choices} choices were refused {refused}",
            "use more hosts or a smaller batch; orchestrator plan shows the same search in full",
        )
        raise ConfigurationError(result.findings or [nothing])
    entry = plan_entry(config, result.best, result.best)
    return configured(config, chosen_values(config, result.best)), entry


def host_range(text: str | None) -> tuple[list[int], list[Finding]]:
    """``1..64`` as the powers of two between its ends and the ends themselves, ``4,8,12`` as it stands; ``None`` as nothing."""
    if text is None:
        return [], []
    ends = text.split("..")
    numbers = [part.strip() for part in (ends if len(ends) == 2 else text.split(","))]
    if not all(number.isdigit() and 1 <= int(number) <= 10_000 for number in numbers) or len(numbers) > MOST_COUNTS:
        problem = f"{text!r} is neither a range like 1..64 nor a list like 4,8,12"
        return [], [error("plan-hosts", "planner.hosts", problem, "set planner.hosts=1..64")]
    counts = sorted({int(number) for number in numbers})
    if len(ends) == 2:
        powers = [1 << power for power in range(counts[-1].bit_length())]
        counts = sorted({*counts, *(power for power in powers if counts[0] <= power <= counts[-1])})
    return counts, []


def _searched(config: RunConfig, *, hosts: int | None = None, best_only: bool = False) -> SearchResult:
    """The search over the cluster, or over so many hosts of its kind."""
    named, findings = hosts_of(config)
    if has_error(findings):
        raise ConfigurationError(findings)
    shaped = with_pretrained_shape(config)
    if hosts is not None:
        named = None if named is None else _as_many(named, hosts)
        shaped = replace(shaped, cluster=replace(shaped.cluster, hosts=hosts))
    return search(shaped, hosts=named, machine_memory_bytes=memory_limit_bytes(), best_only=best_only)


def _as_many(named: Sequence[Host], count: int) -> tuple[Host, ...]:
    """The first of the named hosts, and further ones like the last where they are too few."""
    further = (Host(name=f"further-{number}", slots=named[-1].slots) for number in range(1, count - len(named) + 1))
    return (*named[:count], *further)


def _result(
    config: RunConfig,
    result: SearchResult,
    best: PlanEntry | None,
    compared: Sequence[tuple[int, SearchResult]],
    target: Path | None,
) -> CommandResult:
    others = [plan_entry(config, candidate, result.best) for candidate in result.others if result.best is not None]
    front = [plan_entry(config, candidate, result.best) for candidate in result.front if result.best is not None]
    sizes = [(count, None if found.best is None else plan_entry(config, found.best, found.best)) for count, found in compared]
    verdict = "feasible" if best is not None else "invalid" if result.num_choices == 0 else "infeasible"
    payload: dict[str, Any] = {
        "verdict": verdict,
        "findings": [finding.to_dict() for finding in result.findings],
        "objective": config.planner.objective.value,
        "best": None if best is None else best.to_dict(),
        "usual_advice": None if best is None else usual_advice(best),
        "others": [entry.to_dict() for entry in others],
        "front": [entry.to_dict() for entry in front],
        "refused": [{"rule": entry.rule, "choices": entry.choices, "example": entry.example} for entry in result.refused],
        "searched": {"choices": result.num_choices, "planned": result.num_planned},
        "hosts": [dict(_host_entry(count, entry)) for count, entry in sizes] or None,
        "file": None if target is None or best is None else str(target),
    }
    told = plans_report(config, result, best, others, front, sizes, target)
    return CommandResult(exit_code=OK if best is not None else REFUSED, payload=payload, text=told)


def _host_entry(count: int, entry: PlanEntry | None) -> Iterator[tuple[str, Any]]:
    yield "hosts", count
    yield "best", None if entry is None else entry.to_dict()
