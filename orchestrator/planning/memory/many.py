"""Device memory of many layouts of one run at once, by the kernels that estimate a single one.

Bytes of model states and buffers depend on the tensor- and data-parallel size, those of activations on the tensor-parallel size
and the micro-batches; what changes the shape of the formulas (ZeRO stage, recomputation, pipeline stages, whether gradients
accumulate) is looped over. Each of the two is computed once for each combination that occurs, and a layout looks both up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from orchestrator.config.enums import Accelerator, PipelineSchedule, RecomputePolicy
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, resolve_settings
from orchestrator.planning.broadcast import larger
from orchestrator.planning.memory.activations import PassBytes, in_flight_micro_batches
from orchestrator.planning.memory.device import Phase, StageLoad, pass_components, state_components
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.levels import (
    DeviceSurroundings,
    extra_groups,
    needed_bytes,
    outside_bytes,
    reserved_bytes,
)
from orchestrator.planning.memory.shape import RankShape, tensor_shapes
from orchestrator.planning.parameters import Size
from orchestrator.planning.partition import UNIFORM, Stage, partition_layers, stages_per_rank
from orchestrator.planning.tables import chunks, groups, looked_up, tabulate

Held = tuple[int, Sequence[Stage]]
"""A pipeline coordinate and its stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts as integer arrays that broadcast against each other; ``recompute`` is an array of policies, or one for all."""

    tensor_parallel_size: Size
    pipeline_parallel_size: Size
    data_parallel_size: Size
    train_micro_batch_size_per_gpu: Size
    gradient_accumulation_steps: Size
    zero_stage: Size
    recompute: Size

    def flat(self) -> tuple[tuple[int, ...], dict[str, np.ndarray]]:
        """The shape they broadcast to, and each of them as one long array."""
        policies = list(RecomputePolicy)
        arrays = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        arrays["recompute"] = np.select([arrays["recompute"] == policy for policy in policies], range(len(policies)), -1)
        assert np.all(arrays["recompute"] >= 0)
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        return shape, {name: np.broadcast_to(array, shape).ravel().astype(np.int64) for name, array in arrays.items()}


def estimate_many(estimator: Estimator, layouts: Layouts) -> np.ndarray:
    """Bytes of the device that the fullest rank of each layout needs, as ``DeviceMemory.device_bytes``.

    Everything else is as ``estimator``'s configuration says; layers are spread uniformly over the stages. Which layouts are
    legal is not asked: the rules know. A layout with more stages than layers gets -1. Runs with a CPU accelerator or frozen
    parameters have to be estimated one by one.
    """
    assert estimator.settings.accelerator is not Accelerator.cpu
    assert estimator.trainable_shares is None
    shape, arrays = layouts.flat()
    result = np.full(arrays["zero_stage"].shape, -1, dtype=np.int64)
    held = stages_per_rank(estimator.config.parallelism.schedule, 2)
    for places, (stages,) in groups([arrays["pipeline_parallel_size"]]):
        if stages * (held if stages > 1 else 1) <= estimator.spec.num_hidden_layers:
            result[places] = _device_bytes(estimator, {name: array[places] for name, array in arrays.items()}, stages)
    return result.reshape(shape)


def stage_settings(estimator: Estimator, zero_stage: int, pipeline_parallel_size: int) -> DeepSpeedSettings:
    """The settings of ``estimator``'s run with another ZeRO stage and another number of stages."""
    config = estimator.config
    zero = replace(config.zero, stage=zero_stage)
    parallelism = replace(config.parallelism, pipeline_parallel_size=pipeline_parallel_size)
    return resolve_settings(replace(config, zero=zero, parallelism=parallelism))


def _device_bytes(estimator: Estimator, arrays: dict[str, np.ndarray], pipeline_parallel_size: int) -> np.ndarray:
    """Layouts with the same pipeline stages."""
    held = _different_stages(estimator, pipeline_parallel_size)
    tensor, data = arrays["tensor_parallel_size"], arrays["data_parallel_size"]
    micro_batches = arrays["gradient_accumulation_steps"]
    variants = 2 * arrays["zero_stage"] + (micro_batches > 1)
    of_state, states = tabulate(
        [variants, tensor, data],
        lambda variant, sizes: _state_bytes(estimator, held, pipeline_parallel_size, *divmod(variant, 2), *sizes),
    )
    counted = np.minimum(micro_batches, _most_in_flight(estimator, pipeline_parallel_size))
    of_pass, passes = tabulate(
        [arrays["recompute"], tensor, arrays["train_micro_batch_size_per_gpu"], counted],
        lambda recompute, sizes: _pass_bytes(estimator, held, pipeline_parallel_size, recompute, *sizes),
    )
    result = np.empty(len(tensor), dtype=np.int64)
    (outside, standing, *in_passes), accelerator = states, estimator.cluster.accelerator
    for chunk in chunks(len(result)):
        state, one_pass = of_state[chunk], of_pass[chunk]
        needed = looked_up(standing, state)
        for beside, own in zip(in_passes, passes, strict=True):
            needed = np.maximum(needed, looked_up(beside, state) + looked_up(own, one_pass))
        result[chunk] = reserved_bytes(needed, accelerator) + looked_up(outside, state)
    return result


def _state_bytes(
    estimator: Estimator,
    held: Sequence[Held],
    pipeline_parallel_size: int,
    zero_stage: int,
    accumulates: int,
    tensor: np.ndarray,
    data: np.ndarray,
) -> list[Size]:
    """Outside the allocator; in the largest phase without activations; and beside those of the two phases that have them."""
    settings = stage_settings(estimator, zero_stage, pipeline_parallel_size)
    shapes = tensor_shapes(
        estimator.spec,
        tensor_parallel_size=tensor,
        persistence_threshold=settings.stage3_param_persistence_threshold,
    )
    cluster = estimator.cluster
    surroundings = DeviceSurroundings(
        accelerator=cluster.accelerator,
        context_bytes=cluster.device_context_bytes,
        extra_groups=extra_groups(
            tensor_parallel_size=tensor, pipeline_parallel_size=pipeline_parallel_size, data_parallel_size=data
        ),
        capacity_bytes=cluster.device_memory_bytes,
    )
    standing: Size = 0
    in_passes: dict[Any, list[Size]] = {}
    for _, stages in held:
        kind = _kind(stages)
        if kind not in in_passes:
            load = StageLoad(
                held=tuple(stages),
                shape=shapes.of_rank(stages),
                in_flight=(1,) * len(stages),
                data_parallel_size=data,
                pipeline_parallel_size=pipeline_parallel_size,
                accumulates=bool(accumulates),
            )
            phases = dict(state_components(settings, load))
            in_passes[kind] = [sum(phases.pop(phase).values()) for phase in (Phase.loss, Phase.backward)]
            standing = larger(standing, needed_bytes(phases))
    return [outside_bytes(surroundings), standing, *(size for _, stages in held for size in in_passes[_kind(stages)])]


def _pass_bytes(
    estimator: Estimator,
    held: Sequence[Held],
    pipeline_parallel_size: int,
    recompute: int,
    tensor: np.ndarray,
    micro_batch: np.ndarray,
    micro_batches: np.ndarray,
) -> list[Size]:
    """What goes with the activations, in the phases that have any."""
    passed = replace(
        estimator.passed,
        micro_batch=micro_batch,
        tensor_parallel_size=tensor,
        recompute=list(RecomputePolicy)[recompute],
    )
    of_pass = PassBytes(estimator.spec, passed)
    found: list[Size] = []
    for coordinate, stages in held:
        load = StageLoad(
            held=tuple(stages),
            shape=_NO_SHAPE,
            in_flight=_in_flight(estimator, coordinate, stages, pipeline_parallel_size, micro_batches),
            data_parallel_size=1,
            pipeline_parallel_size=pipeline_parallel_size,
            accumulates=False,
        )
        phases = pass_components(load, of_pass)
        found += [sum(phases[phase].values()) for phase in (Phase.loss, Phase.backward)]
    return found


_NO_SHAPE = RankShape(parameters=0, trainable_parameters=0, largest_parameter=0, persistent_parameters=0)
"""Activations do not ask for it."""


def _different_stages(estimator: Estimator, pipeline_parallel_size: int) -> list[Held]:
    """The first coordinate of each kind: of equal stages it has the most micro-batches in flight.

    With DualPipeV, whose stages on the way back have more the later they are, every coordinate.
    """
    held = stages_per_rank(estimator.config.parallelism.schedule, pipeline_parallel_size)
    partition = partition_layers(
        estimator.spec, pipeline_parallel_size=pipeline_parallel_size, method=UNIFORM, stages_per_rank=held
    )
    coordinates = [(index, partition.held_by(index)) for index in range(partition.num_coordinates)]
    if held > 1:
        return list(coordinates)
    kinds: dict[Any, Held] = {}
    for index, stages in coordinates:
        kinds.setdefault(_kind(stages), (index, stages))
    return list(kinds.values())


def _kind(stages: Sequence[Stage]) -> Any:
    return tuple(stage.kind for stage in stages)


def _most_in_flight(estimator: Estimator, pipeline_parallel_size: int) -> int:
    """Micro-batches beyond which no stage keeps more."""
    if pipeline_parallel_size == 1:
        return 1
    match estimator.config.parallelism.schedule:
        case PipelineSchedule.gpipe:
            return np.iinfo(np.int64).max
        case PipelineSchedule.dual_pipe_v:
            return 2 * pipeline_parallel_size
        case PipelineSchedule.one_f_one_b:
            return pipeline_parallel_size


def _in_flight(
    estimator: Estimator, coordinate: int, stages: Sequence[Stage], pipeline_parallel_size: int, micro_batches: np.ndarray
) -> tuple[Size, ...]:
    """Micro-batches that each of a coordinate's stages keeps at once."""
    if pipeline_parallel_size == 1:
        return (1,)
    return tuple(
        in_flight_micro_batches(
            coordinate,
            pipeline_parallel_size=pipeline_parallel_size,
            micro_batches=micro_batches,
            schedule=estimator.config.parallelism.schedule,
            way_back=way_back,
        )
        for way_back in (False, True)[: len(stages)]
    )
