"""The closed forms of the pipeline against the replay of the schedules that DeepSpeed runs."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.cost.pipeline import (
    dual_pipe_v_bound,
    gpipe_seconds,
    one_f_one_b_seconds,
    pipeline_seconds,
    replayed_seconds,
)
from orchestrator.planning.schedule import Schedule, all_stage_steps, routes
from orchestrator.planning.schedules.replay import PassSeconds, replay

CASES = 2000


def alone(passes):
    return [[seconds] for seconds in passes]


def replayed(schedule, forward, backward, micro_batches):
    """The end of the timeline of the schedule's own steps."""
    kind = Schedule(schedule.value)
    sizes = {"num_stages": len(forward), "micro_batches": micro_batches}
    seconds = [
        [PassSeconds(forward=ahead, backward_input=back, backward_weight=0.0) for ahead, back in zip(*both, strict=True)]
        for both in zip(forward, backward, strict=True)
    ]
    return replay(all_stage_steps(kind, **sizes), routes(kind, **sizes), seconds).seconds


@pytest.mark.parametrize(
    ("schedule", "closed_form"),
    [(PipelineSchedule.one_f_one_b, one_f_one_b_seconds), (PipelineSchedule.gpipe, gpipe_seconds)],
)
def test_the_closed_forms_equal_the_replay_whatever_the_stages_take(schedule, closed_form):
    random = np.random.default_rng(0)
    for _ in range(CASES):
        stages, micro_batches = int(random.integers(2, 9)), int(random.integers(1, 21))
        forward, backward = random.uniform(0.2, 2, stages), random.uniform(0.2, 4, stages)
        expected = replayed(schedule, alone(forward), alone(backward), micro_batches)
        assert closed_form(forward, backward, micro_batches) == pytest.approx(expected, rel=1e-9)


def test_layouts_in_arrays_get_what_each_gets_alone():
    random = np.random.default_rng(1)
    forward, backward = random.uniform(1, 2, (50, 6)), random.uniform(1, 4, (50, 6))
    micro_batches = random.integers(1, 30, 50)
    for closed_form in (one_f_one_b_seconds, gpipe_seconds):
        together = closed_form(forward.T, backward.T, micro_batches)
        each = [closed_form(forward[index], backward[index], int(micro_batches[index])) for index in range(50)]
        assert together == pytest.approx(np.array(each))


def dual_pipe_v_stages(random, ranks):
    """Times of the stages in the order of the layers, and by rank and chunk."""
    forward, backward = random.uniform(0.8, 1.2, 2 * ranks), random.uniform(1.6, 2.4, 2 * ranks)
    by_rank = [[[passes[rank], passes[2 * ranks - 1 - rank]] for rank in range(ranks)] for passes in (forward, backward)]
    return forward, backward, *by_rank


def test_no_dual_pipe_v_is_faster_than_its_bound():
    random = np.random.default_rng(2)
    for _ in range(200):
        ranks = int(random.integers(2, 5))
        micro_batches = int(random.integers(2 * ranks, 5 * ranks))
        forward, backward, *by_rank = dual_pipe_v_stages(random, ranks)
        expected = replayed(PipelineSchedule.dual_pipe_v, *by_rank, micro_batches)
        assert replayed_seconds(PipelineSchedule.dual_pipe_v, *by_rank, micro_batches=micro_batches) == pytest.approx(expected)
        assert dual_pipe_v_bound(forward, backward, micro_batches) <= expected * (1 + 1e-9)


def test_many_micro_batches_of_dual_pipe_v_go_on_as_it_settled():
    random = np.random.default_rng(3)
    for _ in range(10):
        ranks = int(random.integers(2, 5))
        _, _, *by_rank = dual_pipe_v_stages(random, ranks)
        expected = replayed(PipelineSchedule.dual_pipe_v, *by_rank, 9 * ranks)
        seconds = pipeline_seconds(PipelineSchedule.dual_pipe_v, *by_rank, micro_batches=9 * ranks)
        assert seconds == pytest.approx(expected, rel=5e-3)


def test_without_a_pipeline_micro_batches_follow_each_other():
    assert pipeline_seconds(PipelineSchedule.one_f_one_b, [[1.0]], [[2.0]], micro_batches=5) == 15.0
