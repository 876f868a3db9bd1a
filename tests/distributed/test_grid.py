"""Whatever is combined, training stays the same: cases in which every two options meet, against a plain torch loop."""

from __future__ import annotations

from itertools import product

import pytest

from tests.distributed.grid import AXES, MAX_PROCESSES, all_pairs, num_processes, objections, pairs, pairwise_cover, sample
from tests.distributed.grid_runs import HEADINGS, LOSS_TOLERANCE, NORM_TOLERANCE, PlainLoops, difference, row

NUM_CASES = 34
"""How many cases the cover has; it takes a while to find, so it is not asked when tests are collected."""
IMPOSSIBLE: dict[str, list[tuple[str, str]]] = {
    "at most eight processes": [
        ("tensor_parallel_size=4", "pipeline_parallel_size=4"),
        ("tensor_parallel_size=4", "data_parallel_size=4"),
        ("pipeline_parallel_size=4", "data_parallel_size=4"),
    ],
    "nothing to divide over": [
        ("tensor_parallel_size=1", "sequence_parallel=True partition_activations=True"),
        ("sequence_parallel=True", "partition_activations=True"),
    ],
    "of a pipeline only": [
        (
            "pipeline_parallel_size=1 stage=2,3 param_device=cpu optimizer_ratio=0.5",
            "schedule=gpipe,dual_pipe_v partition_method=parameters,balanced,explicit,type:decoder",
        ),
    ],
    "a pipeline goes with ZeRO 0 and 1": [
        ("pipeline_parallel_size=2,4", "stage=2,3 param_device=cpu optimizer_ratio=0.5"),
    ],
    "a folded pipeline has two micro-batches for each stage": [
        ("schedule=dual_pipe_v", "gradient_accumulation_steps=1,2"),
    ],
    "offload as far as ZeRO goes": [
        ("stage=0", "optimizer_device=cpu"),
        ("stage=0,1,2", "param_device=cpu optimizer_ratio=0.5"),
        ("optimizer_device=none", "optimizer_ratio=0.5"),
    ],
    "only inputs that are kept": [
        ("policy=none,full,selective", "interval=3"),
        ("policy=none,selective", "partition_activations=True cpu_checkpointing=True"),
    ],
}
"""Values that do not go together, and why: every value on the left with every value on the right."""


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    return PlainLoops(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def table(report):
    """Rows of what was compared, printed when all are there."""
    rows = [HEADINGS]
    yield rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in rows]
    report(
        "\n".join(
            ["", "ten steps in fp32 with clipping: largest difference to a plain torch loop over the largest value", *lines]
        )
    )


@pytest.mark.parametrize("number", range(NUM_CASES))
def test_every_two_options_together_train_like_a_plain_loop(tmp_path, loops, table, number):
    case = pairwise_cover()[number]
    found = difference(case, loops, tmp_path / "run")
    table.append(row(case, found))
    assert found.loss < LOSS_TOLERANCE
    assert found.norm < NORM_TOLERANCE


def test_the_cases_have_every_two_values_that_can_stand_together():
    cover = pairwise_cover()
    assert len(cover) == NUM_CASES
    assert all(objections(case) == 0 and num_processes(case) <= MAX_PROCESSES for case in cover)
    missing = set(all_pairs()).difference(*map(pairs, cover))
    assert {frozenset(map(_short, pair)) for pair in missing} == {
        frozenset(pair)
        for impossible in IMPOSSIBLE.values()
        for left, right in impossible
        for pair in product(_values(left), _values(right))
    }


def test_the_large_grid_holds_the_cover_and_only_legal_cases():
    cases = sample(150)
    assert len(set(cases)) == 150
    assert set(pairwise_cover()) < set(cases)
    assert all(objections(case) == 0 for case in cases)


def _short(choice: tuple[str, object]) -> tuple[str, str]:
    axis, value = choice
    return axis.rpartition(".")[2], str(value)


def _values(text: str) -> list[tuple[str, str]]:
    """``a=1,2 b=x`` as the values it names."""
    known = {axis.rpartition(".")[2] for axis in AXES}
    assigned = [word.split("=") for word in text.split()]
    assert known.issuperset(name for name, _ in assigned)
    return [(name, value) for name, values in assigned for value in values.split(",")]
