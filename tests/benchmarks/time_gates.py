"""What the step-time estimate is held against: the promises, two rules of thumb, and what other tools reach there."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tests.benchmarks.published_throughput import Run, is_tuned
from tests.benchmarks.time_statistics import mean_scaled_error

if TYPE_CHECKING:
    from tests.benchmarks.time_accuracy import Outcome

PEERS: Mapping[str, Mapping[str, str]] = {
    "vtrain_multi": {
        "Calculon": "mean 15.3 %, regret 1.3 %",
        "llm-analysis": "mean 24.5 %, regret 15.1 %",
    },
    "vtrain_single": {
        "Calculon": "mean 39.0 %, regret 12.7 %",
        "llm-analysis": "mean 59.9 %, regret 79.6 %",
    },
    "bloom": {"Calculon": "mean 30.2 %, with one scale factor 7.8 %"},
    "nar21": {"Calculon": "mean 10.3 %, with one scale factor 2.8 % (tables 1 and 2)"},
}
"""Calculon at commit caa4b11 and llm-analysis 0.2.2, run on these rows."""

Rule = Literal["least_model_parallel", "tensor_inside_host"]


def rule_order(run: Run | None, rule: Rule) -> tuple[float, ...]:
    """The order in which a rule of thumb takes layouts, least first.

    ``least_model_parallel``: the least tensor x pipeline, then the largest micro-batch. ``tensor_inside_host``: tensor
    parallelism as far as a host reaches, then the fewest stages, then the largest micro-batch.
    """
    assert run is not None
    layout = run.layout
    tensor, micro = layout.tensor_parallel_size, layout.train_micro_batch_size_per_gpu
    if rule == "least_model_parallel":
        return tensor * layout.pipeline_parallel_size, -micro
    reach = run.cluster.devices_per_host
    return abs(min(tensor, reach) - reach) + (tensor > reach) * tensor, layout.pipeline_parallel_size, -micro


def gate_lines(outcomes: Sequence[Outcome], result: Mapping[str, Any]) -> Iterator[str]:
    """Each promise with what was reached; those of sources that the file lacks are left out."""
    for name, value, limit, at_least in _gates(outcomes, result):
        if value is None:
            continue
        kept = value >= limit if at_least else value <= limit
        number = f"{value:.3f}" if "rank" in name else f"{value:.1%}"
        bound = f"{limit:.2f}" if "rank" in name else f"{limit:.0%}"
        yield f"{'kept  ' if kept else 'MISSED'} {name}: {number}, promised {'at least' if at_least else 'at most'} {bound}"


def _gates(outcomes: Sequence[Outcome], result: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float, bool]]:
    """(name, value, limit, whether the limit is the least)."""
    sources, groups = result["sources"], result["groups"]
    for source, plain, scaled in (("vtrain_multi", 0.15, 0.10), ("vtrain_single", 0.20, 0.12), ("bloom", 0.20, 0.10)):
        figures = sources.get(source, {})
        yield f"{source}, mean error", figures.get("mean"), plain, False
        yield f"{source}, mean error after one scale factor", figures.get("mean_scaled"), scaled, False
    plain_error, scaled_error = megatron_errors(outcomes)
    yield "Narayanan (no ZeRO) and Korthikanti, mean error", plain_error, 0.10, False
    yield "Narayanan (no ZeRO) and Korthikanti, mean error after one scale factor", scaled_error, 0.04, False
    several, single = groups.get("vtrain_multi", {}), groups.get("vtrain_single", {})
    yield "vtrain_multi, least rank correlation", several.get("rank_correlation_min"), 0.9, True
    yield "vtrain_multi, worst regret", several.get("regret_max"), 0.05, False
    yield "vtrain_single, mean regret", single.get("regret_mean"), 0.05, False
    yield "vtrain_single, best layout among the first three", single.get("top3"), 0.8, True
    counted = [outcome for outcome in outcomes if outcome.counts]
    share = sum(outcome.error is not None for outcome in counted) / len(counted) if counted else None
    yield "rows predicted", share, 0.95, True
    ran = result["memory"]["ran"]
    yield "rows that ran and are refused", ran["refused"] / ran["rows"] if ran["rows"] else None, 0.05, False
    oom = result["memory"]["oom"]
    yield "rows out of memory and accepted", oom["accepted"] / oom["rows"] if oom["rows"] else None, 0.0, False


def megatron_errors(outcomes: Sequence[Outcome]) -> tuple[float | None, float | None]:
    """Mean error of Narayanan's rows without ZeRO and Korthikanti's, and with a scale factor for each of the two sources."""
    plain: list[float] = []
    scaled: list[float] = []
    for source in ("nar21", "kor22"):
        rows = [outcome for outcome in outcomes if outcome.counts and outcome.source == source and outcome.error is not None]
        rows = [outcome for outcome in rows if outcome.run is not None and outcome.run.zero_stage == 0]
        rows = [outcome for outcome in rows if not is_tuned(outcome.row)] or rows
        if rows:
            plain += [abs(outcome.error) for outcome in rows if outcome.error is not None]
            predicted = [outcome.seconds for outcome in rows if outcome.seconds is not None]
            measured = [outcome.measured_seconds for outcome in rows if outcome.measured_seconds is not None]
            scaled += [mean_scaled_error(predicted, measured)] * len(rows)
    return (statistics.fmean(plain), statistics.fmean(scaled)) if plain else (None, None)
