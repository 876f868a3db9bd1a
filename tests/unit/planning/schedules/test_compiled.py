"""Compiled schedules take as long as their replay says."""

from __future__ import annotations

import random

import pytest

from orchestrator.planning.schedule import Schedule, all_stage_steps, chunks_per_stage, routes
from orchestrator.planning.schedules.compiled import compile_schedule
from orchestrator.planning.schedules.replay import DeadlockError, PassSeconds, replay


@pytest.mark.parametrize("num_stages", [2, 4, 6])
@pytest.mark.parametrize("schedule", [Schedule.gpipe, Schedule.one_f_one_b, Schedule.interleaved, Schedule.dual_pipe_v])
def test_any_times_give_the_seconds_of_the_replay(schedule, num_stages):
    draw = random.Random(num_stages)
    num_chunks = 2 if schedule is Schedule.interleaved else 1
    sizes = {"num_stages": num_stages, "micro_batches": 2 * num_stages, "num_chunks": num_chunks}
    stages, ways = all_stage_steps(schedule, **sizes), routes(schedule, **sizes)
    compiled = compile_schedule(stages, ways)
    for _ in range(5):
        forward, backward = (
            [[draw.random() for _ in range(chunks_per_stage(schedule, num_chunks))] for _ in range(num_stages)]
            for _ in range(2)
        )
        seconds = [
            [PassSeconds(forward=ahead, backward_input=back, backward_weight=0.0) for ahead, back in zip(*both, strict=True)]
            for both in zip(forward, backward, strict=True)
        ]
        assert compiled.seconds(forward, backward) == pytest.approx(replay(stages, ways, seconds).seconds)


def test_stages_that_wait_for_each_other_are_named():
    sizes = {"num_stages": 2, "micro_batches": 2}
    first, last = all_stage_steps(Schedule.one_f_one_b, **sizes)
    with pytest.raises(DeadlockError, match="0, 1"):
        compile_schedule((first, tuple(reversed(last))), routes(Schedule.one_f_one_b, **sizes))
