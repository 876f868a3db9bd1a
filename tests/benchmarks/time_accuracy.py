"""Judges the step-time estimate on published runs: ``python -m tests.benchmarks.time_accuracy FILE [--json]``.

FILE has the columns of ``tests/data/throughput_published.csv``. Every row that states model shape, layout, batch, device and a
speed counts; one that cannot be predicted lowers ``predicted``. Sources count FLOPs differently, so that seconds of a step are
compared. Constants of the cost model were chosen on half of the single-node vTrain rows and on Narayanan's table 1: where a
source has other rows, its figures are theirs alone. A group is one model on the same devices with the same batch, measured in
at least five layouts; its regret is the measured time of the layout that the estimate likes best over the best's, minus one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.published_fit import Fit, fit_of, states_memory
from tests.benchmarks.published_rows import Row, read_rows
from tests.benchmarks.published_throughput import Run, is_tuned, out_of_memory, read_runs, source_of, states_a_run
from tests.benchmarks.published_time import predicted_seconds
from tests.benchmarks.time_gates import PEERS, gate_lines, rule_order
from tests.benchmarks.time_statistics import Pick, PickSummary, errors, pick, random_regret, summarize_picks

FEWEST_LAYOUTS = 5
FIGURES = ("mean", "median", "p90", "bias", "mean_scaled", "rank_correlation")
Order = Callable[["Outcome"], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A row, and what became of it."""

    row: Row
    run: Run | None
    seconds: float | None
    """Of the row's step, as predicted."""
    problem: str
    """Why there is no prediction."""

    @property
    def source(self) -> str:
        """The source it counts for."""
        return source_of(self.row)

    @property
    def counts(self) -> bool:
        """Whether it states all that is needed and did run."""
        return states_a_run(self.row) and not out_of_memory(self.row)

    @property
    def measured_seconds(self) -> float | None:
        """What was published."""
        return None if self.run is None else self.run.measured_seconds

    @property
    def error(self) -> float | None:
        """Signed share of the published time by which the prediction is off."""
        measured = self.measured_seconds
        return None if measured is None or self.seconds is None else self.seconds / measured - 1


def judge(rows: Sequence[Row]) -> list[Outcome]:
    """Every row, predicted."""
    outcomes = []
    for row, found in zip(rows, read_runs(rows), strict=True):
        if isinstance(found, str):
            outcomes.append(Outcome(row=row, run=None, seconds=None, problem=found))
            continue
        seconds = predicted_seconds(found)
        problem = seconds if isinstance(seconds, str) else ""
        outcomes.append(Outcome(row=row, run=found, seconds=None if isinstance(seconds, str) else seconds, problem=problem))
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures by source and by groups of layouts, of rows that the constants were not chosen on where there are any."""
    counted = [outcome for outcome in outcomes if outcome.counts]
    sources, groups, tuned = {}, {}, {}
    for source in dict.fromkeys(outcome.source for outcome in counted):
        rows = [outcome for outcome in counted if outcome.source == source]
        seen = [outcome for outcome in rows if is_tuned(outcome.row)]
        unseen = [outcome for outcome in rows if not is_tuned(outcome.row)]
        sources[source] = source_figures(unseen or seen)
        if seen and unseen:
            tuned[source] = source_figures(seen)
        layouts = layout_groups(unseen or seen)
        if layouts:
            groups[source] = group_figures(layouts)
    return {
        "sources": sources,
        "groups": groups,
        "tuned": tuned,
        "memory": memory_figures(outcomes),
        "not_predicted": reasons(outcomes),
    }


def reasons(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Rows without a prediction, by source and by what is the matter with them."""
    found: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        if outcome.problem:
            of_source = found.setdefault(outcome.source, {})
            of_source[outcome.problem] = of_source.get(outcome.problem, 0) + 1
    return found


def source_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The errors of rows of one source."""
    pairs = [(outcome.seconds, outcome.measured_seconds) for outcome in outcomes if outcome.error is not None]
    found: Mapping[str, Any] = asdict(errors(*map(list, zip(*pairs, strict=True)))) if pairs else dict.fromkeys(FIGURES)
    chosen_on = sum(is_tuned(outcome.row) for outcome in outcomes)
    return {"rows": len(outcomes), "predicted": len(pairs), **found, "tuned_rows": chosen_on}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout of a group: the median of its measurements."""

    outcome: Outcome
    predicted_seconds: float
    measured_seconds: float


def layout_groups(outcomes: Sequence[Outcome]) -> dict[tuple[str, ...], list[Layout]]:
    """The groups of at least five layouts that are predicted, repeated measurements of a layout as one."""
    groups: dict[tuple[str, ...], dict[tuple[object, ...], list[Outcome]]] = {}
    for outcome in outcomes:
        if outcome.run is not None and outcome.error is not None:
            groups.setdefault(outcome.run.group, {}).setdefault(outcome.run.layout_key, []).append(outcome)
    return {
        group: [_layout(repeated) for repeated in layouts.values()]
        for group, layouts in groups.items()
        if len(layouts) >= FEWEST_LAYOUTS
    }


def _layout(repeated: Sequence[Outcome]) -> Layout:
    predicted = [outcome.seconds for outcome in repeated if outcome.seconds is not None]
    measured = [outcome.measured_seconds for outcome in repeated if outcome.measured_seconds is not None]
    return Layout(
        outcome=repeated[0], predicted_seconds=statistics.median(predicted), measured_seconds=statistics.median(measured)
    )


def group_figures(groups: Mapping[tuple[str, ...], Sequence[Layout]]) -> dict[str, Any]:
    """What picking by the estimate, at random and by two rules costs in the groups of a source."""
    measured = [[layout.measured_seconds for layout in layouts] for layouts in groups.values()]

    def picks(order: Callable[[Layout], Any]) -> PickSummary:
        return summarize_picks([_pick(layouts, order) for layouts in groups.values()])

    ours = picks(lambda layout: layout.predicted_seconds)
    return {
        **asdict(ours),
        "random_regret": statistics.fmean(random_regret(times) for times in measured),
        "least_model_parallel_regret": picks(lambda layout: rule_order(layout.outcome.run, "least_model_parallel")).regret_mean,
        "tensor_inside_host_regret": picks(lambda layout: rule_order(layout.outcome.run, "tensor_inside_host")).regret_mean,
    }


def _pick(layouts: Sequence[Layout], order: Callable[[Layout], Any]) -> Pick:
    """The pick of an order that may be of tuples: their places are its numbers."""
    keys = [order(layout) for layout in layouts]
    places = {key: float(place) for place, key in enumerate(sorted(set(keys)))}
    return pick([places[key] for key in keys], [layout.measured_seconds for layout in layouts])


def memory_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the memory model says of rows that ran and of rows that did not."""
    found = [(outcome, fit_of(outcome.run)) for outcome in outcomes if outcome.run is not None and states_memory(outcome.row)]
    ran = [fit for outcome, fit in found if not out_of_memory(outcome.row)]
    failed = [(outcome, fit) for outcome, fit in found if out_of_memory(outcome.row)]
    return {
        "ran": {
            "rows": len(ran),
            "refused": sum(fit in (Fit.refused, Fit.unknown) for fit in ran),
            "flagged": ran.count(Fit.flagged),
        },
        "oom": {
            "rows": len(failed),
            "accepted": sum(fit in (Fit.accepted, Fit.unknown) for _, fit in failed),
            "accepted_ids": [outcome.row.id for outcome, fit in failed if fit in (Fit.accepted, Fit.unknown)],
        },
    }


def printed(outcomes: Sequence[Outcome], result: Mapping[str, Any]) -> str:
    """The tables of ``summary``, the gates, and the rows that are not predicted."""
    lines = [f"{'source':24}{'rows':>5}{'pred.':>6}{'mean':>8}{'median':>8}{'p90':>8}{'bias':>8}{'scaled':>8}{'rank':>7}"]
    for source, figures in result["sources"].items():
        lines.append(_source_line(source, figures))
        if source in result["tuned"]:
            lines.append(_source_line("  constants chosen on", result["tuned"][source]))
        lines += [f"  {name:22}{text}" for name, text in PEERS.get(source, {}).items()]
    lines.append("")
    lines.append(
        f"{'groups':16}{'number':>7}{'regret':>8}{'worst':>8}{'top 1':>7}{'top 3':>7}{'least rank':>11}"
        f"{'random':>9}{'least t x p':>12}{'t in host':>10}"
    )
    lines += [_group_line(source, figures) for source, figures in result["groups"].items()]
    ran, oom = result["memory"]["ran"], result["memory"]["oom"]
    lines.append("")
    lines.append(f"memory: of {ran['rows']} rows that ran {ran['refused']} are refused and {ran['flagged']} flagged")
    lines.append(f"memory: of {oom['rows']} rows out of memory {oom['accepted']} are accepted {' '.join(oom['accepted_ids'])}")
    lines += ["", *gate_lines(outcomes, result), ""]
    lines += [
        f"not predicted: {source}, {count} rows: {problem}"
        for source, problems in result["not_predicted"].items()
        for problem, count in problems.items()
    ]
    return "\n".join(lines)


def _source_line(name: str, figures: Mapping[str, Any]) -> str:
    shown = [_share(figures[key], "+" if key == "bias" else "") for key in FIGURES[:-1]]
    correlation = figures["rank_correlation"]
    return (
        f"{name:24}{figures['rows']:5}{figures['predicted']:6}{''.join(f'{text:>8}' for text in shown)}"
        f"{'-' if correlation is None else f'{correlation:.3f}':>7}"
    )


def _group_line(source: str, figures: Mapping[str, Any]) -> str:
    least = figures["rank_correlation_min"]
    return (
        f"{source:16}{figures['groups']:7}{figures['regret_mean']:8.1%}{figures['regret_max']:8.1%}{figures['top1']:7.0%}"
        f"{figures['top3']:7.0%}{'-' if least is None else f'{least:.3f}':>11}{figures['random_regret']:9.1%}"
        f"{figures['least_model_parallel_regret']:12.1%}{figures['tensor_inside_host_regret']:10.1%}"
    )


def _share(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or with ``--json`` one object."""
    parser = argparse.ArgumentParser(description="Judge the step-time estimate on published runs.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    parser.add_argument("--rows", action="store_true", help="print every row with its prediction")
    asked = parser.parse_args(arguments)
    rows = read_rows(asked.file)
    outcomes = judge(rows)
    result = summary(outcomes)
    if asked.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    if asked.rows:
        sys.stdout.writelines(_row_line(outcome) + "\n" for outcome in outcomes if outcome.run is not None)
    sys.stdout.write(printed(outcomes, result) + "\n")


def _row_line(outcome: Outcome) -> str:
    run = outcome.run
    assert run is not None
    layout = run.layout
    sizes = f"t{layout.tensor_parallel_size} p{layout.pipeline_parallel_size} d{layout.data_parallel_size}"
    batch = f"b{layout.train_micro_batch_size_per_gpu} m{layout.gradient_accumulation_steps} z{run.zero_stage}"
    seconds = "-" if outcome.seconds is None else f"{outcome.seconds:.3f}"
    measured = "-" if outcome.measured_seconds is None else f"{outcome.measured_seconds:.3f}"
    return (
        f"{outcome.row.id:22}{sizes:16}{batch:16}{measured:>10}{seconds:>10} {_share(outcome.error, '+'):>8} {outcome.problem}"
    )


if __name__ == "__main__":
    main()
