"""The time of many layouts at once is what each takes by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.config.enums import PipelineSchedule, RecomputePolicy
from orchestrator.planning.cost.many import step_seconds_many
from orchestrator.planning.memory.many import Layouts
from tests.benchmarks.estimate_speed import random_layouts
from tests.unit.planning.cost.steps import estimated, gpu_run, time_of


def one_by_one(layouts, **changes):
    _, arrays = layouts.flat()
    for tensor, pipeline, data, micro_batch, accumulation, stage, recompute in zip(*arrays.values(), strict=True):
        devices = int(tensor * pipeline * data)
        run = gpu_run(
            **changes,
            cluster__hosts=devices // 8,
            parallelism__tensor_parallel_size=int(tensor),
            parallelism__pipeline_parallel_size=int(pipeline),
            training__train_micro_batch_size_per_gpu=int(micro_batch),
            training__gradient_accumulation_steps=int(accumulation),
            zero__stage=int(stage),
            activation_checkpointing__policy=list(RecomputePolicy)[int(recompute)],
        )
        yield time_of(run).step_seconds


def on_whole_hosts(layouts: Layouts) -> Layouts:
    """The same with a data-parallel size that fills hosts of eight."""
    return replace(layouts, data_parallel_size=8 * (1 + layouts.data_parallel_size % 7))


@pytest.mark.parametrize("schedule", [PipelineSchedule.one_f_one_b, PipelineSchedule.gpipe])
def test_arrays_give_what_each_layout_gives(schedule):
    layouts = on_whole_hosts(random_layouts(120, seed=3))
    estimator, _ = estimated(gpu_run(cluster__hosts=8, parallelism__schedule=schedule))
    alone = list(one_by_one(layouts, parallelism__schedule=schedule))
    assert step_seconds_many(estimator, layouts) == pytest.approx(np.array(alone))


def test_dual_pipe_v_in_arrays_is_a_lower_bound():
    layouts = on_whole_hosts(random_layouts(25, seed=4, most_stages=4))
    layouts = replace(layouts, gradient_accumulation_steps=8 + layouts.gradient_accumulation_steps % 9)
    schedule = PipelineSchedule.dual_pipe_v
    estimator, _ = estimated(gpu_run(cluster__hosts=8, parallelism__schedule=schedule))
    alone = np.array(list(one_by_one(layouts, parallelism__schedule=schedule)))
    assert np.all(step_seconds_many(estimator, layouts) <= alone * (1 + 1e-9))


def test_shapes_broadcast_and_too_many_stages_take_for_ever():
    layouts = Layouts(
        tensor_parallel_size=1,
        pipeline_parallel_size=np.array([[1], [2], [64]]),
        data_parallel_size=8,
        train_micro_batch_size_per_gpu=np.array([1, 2]),
        gradient_accumulation_steps=4,
        zero_stage=1,
        recompute=RecomputePolicy.none,
    )
    estimator, _ = estimated(gpu_run(cluster__hosts=8))
    seconds = step_seconds_many(estimator, layouts)
    assert seconds.shape == (3, 2)
    assert np.isinf(seconds[2]).all()
    assert np.isfinite(seconds[:2]).all()
