"""The time of many layouts of one run at once, by the kernels and the closed forms that give a single one.

What changes the shape of the formulas (ZeRO stage, recomputation, pipeline stages) is looped over, and so is the
tensor-parallel size, whose divisions then are those of single numbers: each combination once for all of its layouts. For 1F1B
and GPipe the result is that of ``step_time``; for DualPipeV, which has no closed form, no more than it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.config.enums import PipelineSchedule, RecomputePolicy
from orchestrator.planning.cost.pipeline import dual_pipe_v_bound, gpipe_seconds, one_f_one_b_seconds
from orchestrator.planning.cost.stages import StageSeconds, common_to_stages, stage_seconds
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.many import Layouts, combination_settings, combinations
from orchestrator.planning.parameters import Size
from orchestrator.planning.partition import UNIFORM, Partition, partition_layers, stages_per_rank

CHUNK = 8192
"""Layouts at a time: their arrays stay in the cache."""


def step_seconds_many(estimator: Estimator, layouts: Layouts) -> np.ndarray:
    """Seconds of a step of each layout.

    Everything else is as ``estimator``'s configuration says; layers are spread uniformly over the stages. Which layouts are
    legal is not asked: the rules know. A layout with more stages than layers gets infinity.
    """
    shape, arrays = layouts.flat()
    result = np.full(arrays["zero_stage"].shape, np.inf)
    names = ("zero_stage", "recompute", "pipeline_parallel_size", "tensor_parallel_size")
    for places, (zero_stage, recompute, stages, tensor) in combinations([arrays[name] for name in names]):
        held = stages_per_rank(estimator.config.parallelism.schedule, stages)
        if stages * held > estimator.spec.num_hidden_layers:
            continue
        partition = partition_layers(estimator.spec, pipeline_parallel_size=stages, method=UNIFORM, stages_per_rank=held)
        for first in range(0, len(places), CHUNK):
            chosen = places[first : first + CHUNK]
            sizes = {name: array[chosen] for name, array in arrays.items() if name not in names}
            step = _step(estimator, sizes, zero_stage, recompute, stages, tensor)
            result[chosen] = _seconds(step, partition)
    return result.reshape(shape)


def _step(
    estimator: Estimator, arrays: dict[str, np.ndarray], zero_stage: int, recompute: int, stages: int, tensor: int
) -> TrainingStep:
    """The layouts of a combination as one step whose sizes are arrays."""
    passed = replace(
        estimator.passed,
        micro_batch=arrays["train_micro_batch_size_per_gpu"],
        tensor_parallel_size=tensor,
        recompute=list(RecomputePolicy)[recompute],
    )
    return TrainingStep(
        spec=estimator.spec,
        cluster=estimator.cluster,
        settings=combination_settings(estimator, zero_stage, stages),
        passed=passed,
        pipeline_parallel_size=stages,
        data_parallel_size=arrays["data_parallel_size"],
        micro_batches=arrays["gradient_accumulation_steps"],
        schedule=estimator.config.parallelism.schedule,
    )


def _seconds(step: TrainingStep, partition: Partition) -> np.ndarray:
    common = common_to_stages(step)
    known: dict[tuple[object, ...], tuple[StageSeconds, ...]] = {}
    coordinates = []
    for index in range(partition.num_coordinates):
        held = partition.held_by(index)
        kind = tuple(stage.kind for stage in held)
        if kind not in known:
            known[kind] = stage_seconds(common, held)
        coordinates.append(known[kind])
    update: Size = 0.0
    for chunks in known.values():
        update = np.maximum(update, sum(chunk.update for chunk in chunks))
    return np.asarray(_passes_and_reduction(step, coordinates) + update + common.speeds.step_overhead)


def _passes_and_reduction(step: TrainingStep, coordinates: Sequence[tuple[StageSeconds, ...]]) -> Size:
    """The pipeline, and what the reductions add: a stage has its last gradients before those in front of it."""
    by_layer = [chunks[0] for chunks in coordinates] + [chunks[1] for chunks in reversed(coordinates) if len(chunks) > 1]
    passes = {id(stage): (stage.forward, stage.backward) for stage in by_layer}
    forward, backward = (
        np.stack([np.broadcast_to(passes[id(stage)][which], step.micro_batches.shape) for stage in by_layer], -1)
        for which in (0, 1)
    )
    earlier: Size = 0.0
    left: Size = 0.0
    for chunks in coordinates:
        left = np.maximum(left, sum(chunk.after_backward for chunk in chunks) - earlier)
        earlier = earlier + passes[id(chunks[0])][1]
    if len(coordinates) == 1:
        return step.micro_batches * (forward + backward).sum(-1) + left
    match step.schedule:
        case PipelineSchedule.dual_pipe_v:
            seconds = dual_pipe_v_bound(forward, backward, step.micro_batches)
        case PipelineSchedule.gpipe:
            seconds = gpipe_seconds(forward, backward, step.micro_batches)
        case PipelineSchedule.one_f_one_b:
            seconds = one_f_one_b_seconds(forward, backward, step.micro_batches)
    return seconds + left
