"""The time of many layouts of one run at once, by the kernels and the closed forms that give a single one.

What a stage computes depends on the tensor-parallel size and the micro-batch, what its ranks exchange on the tensor- and
data-parallel size; what changes the shape of the formulas (ZeRO stage, recomputation, pipeline stages) is looped over. Both are
computed once for each combination that occurs, and a layout looks them up. For 1F1B and GPipe the result is that of
``step_time``; for DualPipeV, which has no closed form, no more than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from orchestrator.config.enums import PipelineSchedule, RecomputePolicy
from orchestrator.planning.broadcast import larger
from orchestrator.planning.cost.pipeline import dual_pipe_v_bound, gpipe_seconds, one_f_one_b_seconds
from orchestrator.planning.cost.speeds import speeds_of
from orchestrator.planning.cost.stages import (
    Beside,
    StagePasses,
    StageWaits,
    common_to_stages,
    sends_of,
    stage_exchanges,
    transfer_seconds,
)
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.cost.work import pass_work, stage_work
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.many import Layouts, stage_settings
from orchestrator.planning.memory.shape import tensor_shapes
from orchestrator.planning.parameters import Size
from orchestrator.planning.partition import UNIFORM, Stage, partition_layers, stages_per_rank
from orchestrator.planning.tables import chunks, groups, looked_up, tabulate
from orchestrator.units import DTYPE_BYTES


def step_seconds_many(estimator: Estimator, layouts: Layouts) -> np.ndarray:
    """Seconds of a step of each layout.

    Everything else is as ``estimator``'s configuration says; layers are spread uniformly over the stages. Which layouts are
    legal is not asked: the rules know. A layout with more stages than layers gets infinity.
    """
    shape, arrays = layouts.flat()
    result = np.full(arrays["zero_stage"].shape, np.inf)
    for places, (stages,) in groups([arrays["pipeline_parallel_size"]]):
        held = stages_per_rank(estimator.config.parallelism.schedule, stages)
        if stages * held <= estimator.spec.num_hidden_layers:
            partition = partition_layers(estimator.spec, pipeline_parallel_size=stages, method=UNIFORM, stages_per_rank=held)
            coordinates = [partition.held_by(index) for index in range(stages)]
            result[places] = _of_stages(estimator, coordinates, {name: array[places] for name, array in arrays.items()})
    return result.reshape(shape)


def _any_step(estimator: Estimator, stages: int, zero_stage: int) -> TrainingStep:
    """What the layouts have in common; the sizes are filled in."""
    return TrainingStep(
        spec=estimator.spec,
        cluster=estimator.cluster,
        settings=stage_settings(estimator, zero_stage, stages),
        passed=estimator.passed,
        pipeline_parallel_size=stages,
        data_parallel_size=1,
        micro_batches=1,
        schedule=estimator.config.parallelism.schedule,
    )


class _Work(NamedTuple):
    """Tables of what does not depend on the data-parallel size."""

    residual_bytes: Size
    tensor_gather: Size
    computed: Mapping[Any, Sequence[tuple[Size, Size]]]
    """Forward and backward of each stage of a kind of coordinate."""


class _Exchange(NamedTuple):
    """Tables of what does not depend on the micro-batch."""

    update: Size
    waits: Mapping[Any, Sequence[StageWaits]]


def _of_stages(estimator: Estimator, coordinates: Sequence[Sequence[Stage]], sizes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Layouts with the same stages."""
    kinds = {_kind(held): held for held in coordinates}
    by_zero = list(groups([sizes["zero_stage"]]))
    steps = {stage: _any_step(estimator, len(coordinates), stage) for _, (stage,) in by_zero}
    # All that ZeRO changes in what a stage computes is the format in which gradients are added up.
    gradient_bytes = np.empty_like(sizes["zero_stage"])
    for rows, (stage,) in by_zero:
        gradient_bytes[rows] = DTYPE_BYTES[steps[stage].settings.grad_accum_dtype]
    widest = max(DTYPE_BYTES.values()) + 1
    accumulates = sizes["gradient_accumulation_steps"] > 1
    of_work, work_tables = tabulate(
        [
            sizes["recompute"] * widest + gradient_bytes,
            accumulates,
            sizes["tensor_parallel_size"],
            sizes["train_micro_batch_size_per_gpu"],
        ],
        lambda variant, columns: _work(steps[by_zero[0][1][0]], kinds, *divmod(variant, widest), *columns),
    )
    result = np.empty(len(of_work))
    for rows, (stage,) in by_zero:
        own = {name: array[rows] for name, array in sizes.items()}
        result[rows] = _of_zero_stage(steps[stage], coordinates, own, of_work[rows], work_tables)
    return result


def _of_zero_stage(
    step: TrainingStep,
    coordinates: Sequence[Sequence[Stage]],
    sizes: Mapping[str, np.ndarray],
    of_work: np.ndarray,
    work_tables: Sequence[Size],
) -> np.ndarray:
    """Layouts with the same stages and the same ZeRO stage."""
    kinds = {_kind(held): held for held in coordinates}
    tensor, data = sizes["tensor_parallel_size"], sizes["data_parallel_size"]
    micro_batches = sizes["gradient_accumulation_steps"]
    # Only ZeRO-3 gathers again for what is recomputed.
    policies = sizes["recompute"] if step.settings.zero_stage >= 3 else 0 * sizes["recompute"]
    of_exchange, exchange_tables = tabulate(
        [policies, tensor, data], lambda policy, columns: _exchange(step, kinds, policy, *columns)
    )
    common = common_to_stages(step)
    result = np.empty(len(tensor))
    for chunk in chunks(len(result)):
        work = _as_work(kinds, [looked_up(table, of_work[chunk]) for table in work_tables])
        exchange = _as_exchange(kinds, [looked_up(table, of_exchange[chunk]) for table in exchange_tables])
        passed = replace(step.passed, tensor_parallel_size=tensor[chunk])
        own = replace(step, passed=passed, data_parallel_size=data[chunk], micro_batches=micro_batches[chunk])
        transfer = transfer_seconds(
            own, residual_bytes=work.residual_bytes, tensor_gather=work.tensor_gather, speeds=common.speeds
        )
        passes = {kind: _passes(common.beside, held, kind, work, exchange, transfer) for kind, held in kinds.items()}
        pipeline = _pipeline_and_reduction(own, [passes[_kind(held)] for held in coordinates])
        result[chunk] = pipeline + exchange.update + common.speeds.step_overhead
    return result


def _passes(
    beside: Beside, held: Sequence[Stage], kind: Any, work: _Work, exchange: _Exchange, transfer: Size
) -> list[StagePasses]:
    stages = zip(held, work.computed[kind], exchange.waits[kind], strict=True)
    return [beside.passes(computed, sends_of(stage, transfer), waits) for stage, computed, waits in stages]


def _work(
    step: TrainingStep,
    kinds: Mapping[Any, Sequence[Stage]],
    recompute: int,
    gradient_bytes: int,
    accumulates: np.ndarray,
    tensor: np.ndarray,
    micro_batch: np.ndarray,
) -> list[Size]:
    """The fields of ``_Work`` in one row."""
    policy = list(RecomputePolicy)[recompute]
    passed = replace(step.passed, recompute=policy, tensor_parallel_size=tensor, micro_batch=micro_batch)
    work = pass_work(step.spec, passed, speeds_of(step.cluster, step.settings.dtype))
    shapes = tensor_shapes(step.spec, tensor_parallel_size=tensor, persistence_threshold=0)
    found: list[Size] = [work.residual_bytes, work.tensor_gather]
    for held in kinds.values():
        parameters = shapes.of_rank(held).parameters / len(held)
        for stage in held:
            own = stage_work(work, stage, parameters=parameters, accumulates=accumulates, gradient_bytes=gradient_bytes)
            found += [own.forward, own.backward]
    return found


def _as_work(kinds: Mapping[Any, Sequence[Stage]], fields: Sequence[Size]) -> _Work:
    residual, gather, *passes = fields
    rest = iter(passes)
    return _Work(residual, gather, {kind: [(next(rest), next(rest)) for _ in held] for kind, held in kinds.items()})


def _exchange(
    step: TrainingStep, kinds: Mapping[Any, Sequence[Stage]], recompute: int, tensor: np.ndarray, data: np.ndarray
) -> list[Size]:
    """The fields of ``_Exchange`` in one row."""
    passed = replace(step.passed, recompute=list(RecomputePolicy)[recompute], tensor_parallel_size=tensor)
    common = common_to_stages(replace(step, passed=passed, data_parallel_size=data))
    update: Size = 0.0
    found: list[Size] = []
    for held in kinds.values():
        exchanges = stage_exchanges(common, held)
        update = larger(update, sum(exchange.update for exchange in exchanges))
        found += [wait for exchange in exchanges for wait in exchange.waits]
    return [update, *found]


def _as_exchange(kinds: Mapping[Any, Sequence[Stage]], fields: Sequence[Size]) -> _Exchange:
    update, *waits = fields
    rest = iter(waits)
    num_waits = len(StageWaits._fields)
    return _Exchange(
        update,
        {kind: [StageWaits(*(next(rest) for _ in range(num_waits))) for _ in held] for kind, held in kinds.items()},
    )


def _pipeline_and_reduction(step: TrainingStep, coordinates: Sequence[Sequence[StagePasses]]) -> Size:
    """The pipeline, and what the reductions add: a stage has its last gradients before those in front of it."""
    by_layer = [stages[0] for stages in coordinates] + [stages[1] for stages in reversed(coordinates) if len(stages) > 1]
    forward, backward = [stage.forward for stage in by_layer], [stage.backward for stage in by_layer]
    earlier: Size = 0.0
    left: Size = 0.0
    for stages in coordinates:
        left = larger(left, sum(stage.after_backward for stage in stages) - earlier)
        earlier = earlier + stages[0].backward
    if len(coordinates) == 1:
        return step.micro_batches * (sum(forward) + sum(backward)) + left
    match step.schedule:
        case PipelineSchedule.dual_pipe_v:
            seconds = dual_pipe_v_bound(forward, backward, step.micro_batches)
        case PipelineSchedule.gpipe:
            seconds = gpipe_seconds(forward, backward, step.micro_batches)
        case PipelineSchedule.one_f_one_b:
            seconds = one_f_one_b_seconds(forward, backward, step.micro_batches)
    return seconds + left


def _kind(held: Sequence[Stage]) -> Any:
    return tuple(stage.kind for stage in held)
