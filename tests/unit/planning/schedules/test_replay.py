"""How long the stages compute and wait, against the closed forms of the papers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.schedule import (
    Schedule,
    all_stage_steps,
    bubble_fraction,
    chunks_per_stage,
    replay_schedule,
    routes,
)
from orchestrator.planning.schedules.replay import DeadlockError, PassSeconds, replay
from orchestrator.planning.schedules.steps import Kind, Place, Step
from tests.unit.planning.schedules.sizes import schedules

ONE = PassSeconds(forward=1, backward_input=1, backward_weight=1)
"""A forward of a whole stage takes one, its backward two."""
TIMES = st.integers(1, 9)
STAGES = st.integers(1, 8)
MICRO_BATCHES = st.integers(1, 40)


def parts(seconds, number):
    return PassSeconds(
        forward=seconds.forward / number,
        backward_input=seconds.backward_input / number,
        backward_weight=seconds.backward_weight / number,
    )


def lost(schedule, num_stages, micro_batches, num_chunks=1, seconds=ONE):
    """Time over that of one stage without waits."""
    chunks = 1 if schedule is Schedule.dual_pipe else chunks_per_stage(schedule, num_chunks)
    timeline = replay_schedule(
        schedule,
        num_stages=num_stages,
        micro_batches=micro_batches,
        num_chunks=num_chunks,
        seconds=parts(seconds, chunks),
    )
    whole = seconds.forward + seconds.backward_input + seconds.backward_weight
    return timeline.seconds - micro_batches * whole


@st.composite
def pass_seconds(draw):
    return PassSeconds(forward=draw(TIMES), backward_input=draw(TIMES), backward_weight=draw(TIMES))


@given(schedules(), st.data())
def test_every_step_runs_once_what_it_needs_is_there(case, data):
    schedule, sizes = case
    chunks = chunks_per_stage(schedule, sizes["num_chunks"])
    seconds = [[data.draw(pass_seconds()) for _ in range(chunks)] for _ in range(sizes["num_stages"])]
    transfer = data.draw(st.integers(0, 3))
    ways = routes(schedule, **sizes)
    timeline = replay(all_stage_steps(schedule, **sizes), ways, seconds, transfer_seconds=transfer)
    ran = {
        (timed.step.kind, timed.step.micro_batch, Place(stage, timed.step.chunk)): timed
        for stage, steps in enumerate(timeline.stages)
        for timed in steps
    }

    def assert_after(later, earlier, delay=0):
        assert later.start >= earlier.end + delay

    for micro_batch, way in enumerate(ways):
        forwards = [ran[Kind.forward, micro_batch, place] for place in way]
        backwards = [
            ran.get((Kind.backward, micro_batch, place)) or ran[Kind.backward_input, micro_batch, place] for place in way
        ]
        for forward, backward in zip(forwards, backwards, strict=True):
            assert_after(backward, forward)
        for index in range(1, len(way)):
            delay = transfer if way[index].stage != way[index - 1].stage else 0
            assert_after(forwards[index], forwards[index - 1], delay)
            assert_after(backwards[index - 1], backwards[index], delay)
    for steps in timeline.stages:
        for earlier, later in pairwise(steps):
            if earlier.step.overlaps_next:
                assert (earlier.start, earlier.end) == (later.start, later.end)
            else:
                assert_after(later, earlier)


@given(STAGES, MICRO_BATCHES, pass_seconds())
def test_gpipe_and_1f1b_fill_and_drain_the_pipeline_once(num_stages, micro_batches, seconds):
    expected = (num_stages - 1) / (micro_batches + num_stages - 1)
    for schedule in (Schedule.gpipe, Schedule.one_f_one_b):
        share = bubble_fraction(schedule, num_stages=num_stages, micro_batches=micro_batches, seconds=seconds)
        assert share == pytest.approx(expected)


@given(st.integers(2, 8), st.integers(2, 4), st.integers(1, 4), pass_seconds())
def test_interleaving_divides_the_bubble_by_the_chunks(num_stages, num_chunks, rounds, seconds):
    micro_batches = rounds * num_stages
    sizes = {"num_stages": num_stages, "micro_batches": micro_batches, "num_chunks": num_chunks}
    share = bubble_fraction(Schedule.interleaved, **sizes, seconds=seconds)
    assert share == pytest.approx((num_stages - 1) / (num_chunks * micro_batches + num_stages - 1))


@given(STAGES, st.integers(0, 20), pass_seconds())
def test_zero_bubble_h1_fills_waits_with_weight_gradients(num_stages, extra, seconds):
    hidden = min(seconds.backward_weight, seconds.forward, seconds.backward_input)
    idle = (num_stages - 1) * (seconds.forward + seconds.backward_input - hidden)
    assert lost(Schedule.zero_bubble_h1, num_stages, num_stages + extra, seconds=seconds) == idle


@given(st.integers(1, 5), st.integers(0, 6), st.sampled_from([2.0, 2.25, 2.5, 3.0]))
def test_dual_pipe_waits_as_its_authors_say(half_stages, extra, overlapped):
    num_stages = 2 * half_stages
    timeline = replay_schedule(
        Schedule.dual_pipe,
        num_stages=num_stages,
        micro_batches=2 * (num_stages + extra),
        seconds=replace(ONE, overlapped=overlapped),
    )
    idle = max(timeline.seconds - timeline.busy_seconds(stage) for stage in range(num_stages))
    assert idle == pytest.approx((num_stages / 2 - 1) * (overlapped + 2 - 3 * 1))


@given(STAGES, st.integers(0, 12))
def test_dual_pipe_v_without_split_backward_loses_less_than_1f1b(num_stages, extra):
    micro_batches = 2 * num_stages + extra
    idle = lost(Schedule.dual_pipe_v, num_stages, micro_batches)
    assert idle == max(0, (5 * num_stages - 6) / 2)
    assert idle <= lost(Schedule.one_f_one_b, num_stages, micro_batches)


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "percent"),
    [
        (Schedule.naive, 1, 87.5),
        (Schedule.gpipe, 1, 17.95),
        (Schedule.one_f_one_b, 1, 17.95),
        (Schedule.dual_pipe_v, 1, 15.04),
        (Schedule.interleaved, 2, 9.86),
        (Schedule.zero_bubble_h1, 1, 6.80),
        (Schedule.dual_pipe, 1, 5.88),
        (Schedule.interleaved, 4, 5.19),
    ],
)
def test_bubbles_of_8_stages_and_32_micro_batches(schedule, num_chunks, percent):
    share = bubble_fraction(schedule, num_stages=8, micro_batches=32, num_chunks=num_chunks, seconds=ONE)
    assert 100 * share == pytest.approx(percent, abs=0.005)


@pytest.mark.parametrize("micro_batches", [1, 4, 9])
def test_naive_model_parallelism_on_4_devices_uses_a_quarter_of_them(micro_batches):
    assert bubble_fraction(Schedule.naive, num_stages=4, micro_batches=micro_batches, seconds=ONE) == 0.75


def test_the_fourth_time_slot_is_the_first_in_which_4_stages_all_work():
    timeline = replay_schedule(Schedule.gpipe, num_stages=4, micro_batches=4, seconds=ONE)

    def working(slot):
        return {
            stage: timed.step.micro_batch
            for stage, steps in enumerate(timeline.stages)
            for timed in steps
            if timed.start == slot and timed.step.kind is Kind.forward
        }

    assert [working(slot) for slot in range(4)] == [{0: 0}, {0: 1, 1: 0}, {0: 2, 1: 1, 2: 0}, {0: 3, 1: 2, 2: 1, 3: 0}]


def test_the_bubble_of_pipedream_vanishes_as_micro_batches_go_on():
    shares = [
        bubble_fraction(Schedule.pipedream, num_stages=4, micro_batches=micro_batches, seconds=ONE)
        for micro_batches in (8, 80, 800)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.004


@given(st.integers(2, 6), st.integers(1, 30), st.integers(1, 5))
def test_a_slow_last_stage_sets_the_pace(num_stages, micro_batches, times_slower):
    slow = PassSeconds(forward=times_slower, backward_input=times_slower, backward_weight=times_slower)
    sizes = {"num_stages": num_stages, "micro_batches": micro_batches}
    seconds = [[ONE]] * (num_stages - 1) + [[slow]]
    timeline = replay(all_stage_steps(Schedule.one_f_one_b, **sizes), routes(Schedule.one_f_one_b, **sizes), seconds)
    assert timeline.seconds == 3 * (micro_batches * times_slower + num_stages - 1)


@given(STAGES, MICRO_BATCHES, st.integers(0, 3))
def test_transfers_delay_the_first_fill_and_the_last_drain_of_gpipe(num_stages, micro_batches, transfer):
    timeline = replay_schedule(
        Schedule.gpipe, num_stages=num_stages, micro_batches=micro_batches, seconds=ONE, transfer_seconds=transfer
    )
    assert timeline.seconds == 3 * (micro_batches + num_stages - 1) + 2 * transfer * (num_stages - 1)


@pytest.mark.parametrize(("schedule", "num_chunks"), [(Schedule.interleaved, 3), (Schedule.dual_pipe_v, 1)])
def test_chunks_of_one_stage_hand_over_without_a_transfer(schedule, num_chunks):
    sizes = {"num_stages": 1, "micro_batches": 4, "num_chunks": num_chunks}
    assert bubble_fraction(schedule, **sizes, seconds=ONE, transfer_seconds=5) == 0


def test_stages_that_wait_for_each_other_are_named():
    forward, backward = Step(kind=Kind.forward, micro_batch=0), Step(kind=Kind.backward, micro_batch=0)
    way = (Place(0, 0), Place(1, 0))
    with pytest.raises(DeadlockError, match=r"stage 0 waits to run .*backward.*stage 1 waits to run .*forward"):
        replay([(backward, forward), (forward, backward)], [way], [[ONE], [ONE]])
