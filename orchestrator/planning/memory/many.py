"""Device memory of many layouts of one run at once, by the kernels that estimate a single one.

The kernels broadcast over tensor- and data-parallel size, micro-batch and accumulation. What changes the shape of the formulas
(ZeRO stage, recomputation, pipeline stages, whether gradients accumulate) is looped over, each combination once for all of its
layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from orchestrator.config.enums import Accelerator, RecomputePolicy
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, resolve_settings
from orchestrator.planning.broadcast import larger
from orchestrator.planning.memory.activations import PassBytes, in_flight_micro_batches
from orchestrator.planning.memory.device import StageLoad, phase_components
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.levels import (
    DeviceSurroundings,
    extra_groups,
    needed_bytes,
    outside_bytes,
    reserved_bytes,
)
from orchestrator.planning.memory.shape import rank_shape
from orchestrator.planning.parameters import Size
from orchestrator.planning.partition import UNIFORM, Stage, partition_layers, stages_per_rank


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
    columns = [arrays["zero_stage"], arrays["recompute"], arrays["pipeline_parallel_size"]]
    columns.append((arrays["gradient_accumulation_steps"] > 1).astype(np.int64))
    for chosen, (zero_stage, recompute, pipeline, accumulates) in combinations(columns):
        if pipeline * (held if pipeline > 1 else 1) > estimator.spec.num_hidden_layers:
            continue
        result[chosen] = _of_combination(
            estimator,
            {name: array[chosen] for name, array in arrays.items()},
            settings=combination_settings(estimator, zero_stage, pipeline),
            recompute=list(RecomputePolicy)[recompute],
            pipeline_parallel_size=pipeline,
            accumulates=bool(accumulates),
        )
    return result.reshape(shape)


def combinations(columns: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    """Places of each combination of values that occurs in ``columns`` of integers from 0, and the combination."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    keys = np.ravel_multi_index(tuple(columns), tuple(sizes))
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    for key, chosen in zip(found, np.split(order, starts[1:]), strict=True):
        yield chosen, tuple(int(index) for index in np.unravel_index(key, tuple(sizes)))


def combination_settings(estimator: Estimator, zero_stage: int, pipeline_parallel_size: int) -> DeepSpeedSettings:
    """The settings of ``estimator``'s run with another ZeRO stage and another number of stages."""
    config = estimator.config
    zero = replace(config.zero, stage=zero_stage)
    parallelism = replace(config.parallelism, pipeline_parallel_size=pipeline_parallel_size)
    return resolve_settings(replace(config, zero=zero, parallelism=parallelism))


def _of_combination(
    estimator: Estimator,
    arrays: dict[str, np.ndarray],
    *,
    settings: DeepSpeedSettings,
    recompute: RecomputePolicy,
    pipeline_parallel_size: int,
    accumulates: bool,
) -> np.ndarray:
    """The fullest stage of layouts that differ in sizes alone."""
    tensor, data = arrays["tensor_parallel_size"], arrays["data_parallel_size"]
    passed = replace(
        estimator.passed,
        micro_batch=arrays["train_micro_batch_size_per_gpu"],
        tensor_parallel_size=tensor,
        recompute=recompute,
    )
    needed: Size = 0 * tensor
    for coordinate, held in _different_stages(estimator, pipeline_parallel_size):
        load = _load(estimator, arrays, coordinate, held, pipeline_parallel_size, accumulates)
        needed = larger(needed, needed_bytes(phase_components(settings, load, PassBytes(estimator.spec, passed))))
    cluster = estimator.cluster
    surroundings = DeviceSurroundings(
        accelerator=cluster.accelerator,
        context_bytes=cluster.device_context_bytes,
        extra_groups=extra_groups(
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline_parallel_size,
            data_parallel_size=data,
        ),
        capacity_bytes=cluster.device_memory_bytes,
    )
    return np.asarray(reserved_bytes(needed, cluster.accelerator) + outside_bytes(surroundings))


def _different_stages(estimator: Estimator, pipeline_parallel_size: int) -> list[tuple[int, Sequence[Stage]]]:
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
    kinds: dict[Any, tuple[int, Sequence[Stage]]] = {}
    for index, stages in coordinates:
        kinds.setdefault(tuple(stage.kind for stage in stages), (index, stages))
    return list(kinds.values())


def _load(
    estimator: Estimator,
    arrays: dict[str, np.ndarray],
    coordinate: int,
    held: Sequence[Stage],
    pipeline_parallel_size: int,
    accumulates: bool,
) -> StageLoad:
    tensor = arrays["tensor_parallel_size"]
    in_flight = tuple(
        in_flight_micro_batches(
            coordinate,
            pipeline_parallel_size=pipeline_parallel_size,
            micro_batches=arrays["gradient_accumulation_steps"],
            schedule=estimator.config.parallelism.schedule,
            way_back=way_back,
        )
        for way_back in (False, True)[: len(held)]
    )
    return StageLoad(
        held=tuple(held),
        shape=rank_shape(
            estimator.spec,
            held,
            tensor_parallel_size=tensor,
            persistence_threshold=estimator.settings.stage3_param_persistence_threshold,
        ),
        in_flight=in_flight if pipeline_parallel_size > 1 else (1,),
        data_parallel_size=arrays["data_parallel_size"],
        pipeline_parallel_size=pipeline_parallel_size,
        accumulates=accumulates,
    )
