"""Many layouts at once give what each gives by itself."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.config.enums import PipelineSchedule, RecomputePolicy
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.cluster_spec import cluster_spec_from_config
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.many import Layouts, estimate_many
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.planning.partition import partition_layers, stages_per_rank
from orchestrator.units import GIB
from tests.benchmarks.estimate_speed import random_layouts
from tests.unit.planning.configurations import run_config


def estimator_of(layout, **changes):
    config = run_config(**changes)
    cluster, _ = cluster_spec_from_config(config.cluster, hosts=None, machine_memory_bytes=64 * GIB)
    spec = model_spec_from_config(config.model)
    return Estimator(
        config=config, spec=spec, cluster=cluster, layout=layout, settings=resolve_settings(config), trainable_shares=None
    )


def layout_of(tensor, pipeline, data, micro_batch, accumulation):
    return ParallelLayout(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        train_batch_size=micro_batch * accumulation * data,
        train_micro_batch_size_per_gpu=micro_batch,
        gradient_accumulation_steps=accumulation,
    )


def one_by_one(layouts, **changes):
    _, arrays = layouts.flat()
    for tensor, pipeline, data, micro_batch, accumulation, stage, recompute in zip(*arrays.values(), strict=True):
        estimator = estimator_of(
            layout_of(*(int(size) for size in (tensor, pipeline, data, micro_batch, accumulation))),
            **changes,
            zero__stage=int(stage),
            parallelism__pipeline_parallel_size=int(pipeline),
            activation_checkpointing__policy=list(RecomputePolicy)[int(recompute)],
        )
        partition = partition_layers(
            estimator.spec,
            pipeline_parallel_size=int(pipeline),
            method="uniform",
            stages_per_rank=stages_per_rank(estimator.config.parallelism.schedule, int(pipeline)),
        )
        yield max(entry.device_bytes for entry in estimator.estimate(partition).device)


@pytest.mark.parametrize("schedule", [PipelineSchedule.one_f_one_b, PipelineSchedule.gpipe, PipelineSchedule.dual_pipe_v])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_random_layouts(schedule, sequence_parallel):
    changes = {"parallelism__schedule": schedule, "parallelism__sequence_parallel": sequence_parallel}
    layouts = random_layouts(60, seed=7, most_stages=8)
    together = estimate_many(estimator_of(layout_of(1, 1, 8, 1, 1), **changes), layouts)
    assert list(together) == list(one_by_one(layouts, **changes))


def test_sizes_broadcast():
    layouts = Layouts(
        tensor_parallel_size=np.array([1, 2, 4]),
        pipeline_parallel_size=1,
        data_parallel_size=8,
        train_micro_batch_size_per_gpu=np.array([[1], [8]]),
        gradient_accumulation_steps=4,
        zero_stage=1,
        recompute=RecomputePolicy.none,
    )
    sizes = estimate_many(estimator_of(layout_of(1, 1, 8, 1, 1)), layouts)
    assert sizes.shape == (2, 3)
    assert (sizes[1] > sizes[0]).all()


def test_more_stages_than_layers_is_no_layout():
    layouts = Layouts(
        tensor_parallel_size=1,
        pipeline_parallel_size=np.array([16, 32]),
        data_parallel_size=1,
        train_micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=8,
        zero_stage=1,
        recompute=RecomputePolicy.full,
    )
    assert (estimate_many(estimator_of(layout_of(1, 1, 8, 1, 1)), layouts) > 0).tolist() == [True, False]
