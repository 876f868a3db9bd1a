"""What every stage does, and what it has to hold for that."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.schedule import (
    Schedule,
    all_stage_steps,
    in_flight,
    routes,
    schedule_steps,
    unmet_condition,
    weight_versions,
)
from orchestrator.planning.schedules.steps import Kind, Place
from tests.unit.planning.schedules.sizes import schedules


def held(schedule, num_stages, micro_batches, num_chunks=1):
    return [
        in_flight(schedule, num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks, stage=stage)
        for stage in range(num_stages)
    ]


@given(schedules())
def test_every_micro_batch_goes_once_forward_and_once_back_through_its_whole_route(case):
    schedule, sizes = case
    gradients = {Kind.backward: ("input", "weight"), Kind.backward_input: ("input",), Kind.backward_weight: ("weight",)}
    done = Counter(
        (step.micro_batch, Place(stage, step.chunk), effect)
        for stage, steps in enumerate(all_stage_steps(schedule, **sizes))
        for step in steps
        for effect in gradients.get(step.kind, ("output",))
    )
    needed = [
        (micro_batch, place, effect)
        for micro_batch, route in enumerate(routes(schedule, **sizes))
        for place in route
        for effect in ("output", "input", "weight")
    ]
    assert done == Counter(needed)


@given(schedules())
def test_a_route_visits_every_layer_of_one_copy_of_the_model(case):
    schedule, sizes = case
    copies = 2 if schedule is Schedule.dual_pipe else 1
    for route in routes(schedule, **sizes):
        assert len(set(route)) == len(route)
        assert Counter(place.stage for place in route) == Counter(
            {stage: len(route) // sizes["num_stages"] for stage in range(sizes["num_stages"])}
        )
    assert len(set(routes(schedule, **sizes))) == copies


@pytest.mark.parametrize(("num_stages", "micro_batches"), [(1, 1), (4, 2), (4, 4), (8, 32)])
def test_gpipe_holds_all_micro_batches_and_1f1b_as_many_as_stages_follow(num_stages, micro_batches):
    stages = range(num_stages)
    assert held(Schedule.gpipe, num_stages, micro_batches) == [micro_batches for _ in stages]
    assert held(Schedule.one_f_one_b, num_stages, micro_batches) == [min(num_stages - stage, micro_batches) for stage in stages]
    assert held(Schedule.naive, num_stages, micro_batches) == [1 for _ in stages]


@given(st.integers(1, 8), st.integers(1, 30))
def test_zero_bubble_h1_holds_no_more_than_the_first_stage_of_1f1b(num_stages, micro_batches):
    most = held(Schedule.one_f_one_b, num_stages, micro_batches)[0]
    assert max(held(Schedule.zero_bubble_h1, num_stages, micro_batches)) == most


@given(st.integers(2, 8), st.integers(2, 4), st.integers(2, 4))
def test_interleaving_holds_a_share_more_on_the_first_stage(num_stages, num_chunks, rounds):
    first = held(Schedule.interleaved, num_stages, rounds * num_stages, num_chunks)[0]
    assert first == pytest.approx(num_stages * (1 + (num_stages - 1) / (num_stages * num_chunks)))


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "expected"),
    [
        (Schedule.one_f_one_b, 1, [8, 7, 6, 5, 4, 3, 2, 1]),
        (Schedule.gpipe, 1, [32] * 8),
        (Schedule.interleaved, 2, [11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5]),
        (Schedule.interleaved, 4, [9.75, 9.25, 8.75, 8.25, 7.75, 7.25, 6.75, 6.25]),
        (Schedule.zero_bubble_h1, 1, [8] * 8),
        (Schedule.dual_pipe_v, 1, [8.5] * 8),
        (Schedule.dual_pipe, 1, [9] * 8),
    ],
)
def test_activations_of_8_stages_and_32_micro_batches(schedule, num_chunks, expected):
    assert held(schedule, 8, 32, num_chunks) == expected


@given(st.integers(1, 8), st.integers(1, 40))
def test_pipedream_stashes_the_weights_that_the_forward_found_until_the_backward(num_stages, micro_batches):
    for stage in range(num_stages):
        behind = num_stages - stage
        steps = schedule_steps(Schedule.pipedream, num_stages=num_stages, micro_batches=micro_batches, stage=stage)
        for kind in (Kind.forward, Kind.backward):
            versions = {step.micro_batch: step.weight_version for step in steps if step.kind is kind}
            assert versions == {index: max(0, index + 1 - behind) for index in range(micro_batches)}
        assert weight_versions(steps) <= behind
        if micro_batches >= 2 * behind:
            assert weight_versions(steps) == behind


@given(schedules())
def test_only_pipedream_keeps_more_than_one_version_of_its_weights(case):
    schedule, sizes = case
    if schedule is not Schedule.pipedream:
        assert {weight_versions(steps) for steps in all_stage_steps(schedule, **sizes)} == {1}


@pytest.mark.parametrize(
    ("schedule", "sizes", "says"),
    [
        (Schedule.dual_pipe_v, {"num_stages": 4, "micro_batches": 7}, "at least 8 micro-batches for 4 stages, not 7"),
        (Schedule.dual_pipe, {"num_stages": 3, "micro_batches": 6}, "even numbers, not 3 stages and 6 micro-batches"),
        (Schedule.dual_pipe, {"num_stages": 2, "micro_batches": 5}, "even numbers, not 2 stages and 5 micro-batches"),
        (Schedule.interleaved, {"num_stages": 4, "micro_batches": 6, "num_chunks": 2}, "a multiple of 4 micro-batches"),
        (Schedule.interleaved, {"num_stages": 4, "micro_batches": 8}, "at least 2 chunks a stage, not 1"),
        (Schedule.one_f_one_b, {"num_stages": 4, "micro_batches": 8, "num_chunks": 2}, "cannot have 2 chunks"),
    ],
)
def test_sizes_that_a_schedule_cannot_have_are_named(schedule, sizes, says):
    assert says in (unmet_condition(schedule, **sizes) or "")


@given(schedules())
def test_sizes_that_a_schedule_can_have_are_not_refused(case):
    schedule, sizes = case
    assert unmet_condition(schedule, **sizes) is None
