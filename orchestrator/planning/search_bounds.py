"""Time and device memory of all choices of a combination at once, by the kernels that estimate a single one.

With 1F1B the times are those of ``step_time`` for layers spread uniformly over the stages. With DualPipeV they are a lower
bound: what a rank computes, the way down to it before its first pass, and the way up after its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.cost.pipeline import one_f_one_b_seconds
from orchestrator.planning.cost.stages import StageSeconds, stage_seconds, surroundings_of
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.activations import Pass
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.many import Layouts, estimate_many
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import UNIFORM, partition_layers, stages_per_rank
from orchestrator.planning.search_space import Combination
from orchestrator.units import DTYPE_BYTES


def combination_seconds(config: RunConfig, spec: ModelSpec, cluster: ClusterSpec, choices: Combination) -> np.ndarray:
    """Seconds of a step of each choice, or at least."""
    step = _step(config, spec, cluster, choices)
    around = surroundings_of(step)
    held = stages_per_rank(choices.schedule, choices.pipeline_parallel_size)
    partition = partition_layers(
        spec, pipeline_parallel_size=choices.pipeline_parallel_size, method=UNIFORM, stages_per_rank=held
    )
    known: dict[tuple[object, ...], tuple[StageSeconds, ...]] = {}
    stages = []
    for coordinate in range(partition.num_coordinates):
        on_rank = partition.held_by(coordinate)
        kind = tuple(stage.kind for stage in on_rank)
        if kind not in known:
            known[kind] = stage_seconds(around, on_rank)
        stages.append(known[kind])
    shape = choices.micro_batch.shape
    forward = _stacked([[chunk.forward for chunk in chunks] for chunks in stages], shape)
    backward = _stacked([[chunk.backward for chunk in chunks] for chunks in stages], shape)
    rounds = choices.micro_batches
    if partition.num_coordinates == 1:
        passes = rounds * (forward + backward)[:, 0]
    elif held == 1:
        passes = one_f_one_b_seconds(forward, backward, rounds[:, np.newaxis])
    else:
        passes = _dual_pipe_v_bound(stages, forward + backward, rounds)
    earlier = np.cumsum(backward, -1) - backward
    after = _stacked([[chunks[0].after_backward] for chunks in stages], shape)
    reduction = np.maximum(0.0, (after - earlier).max(-1)) if held == 1 else np.zeros(shape)
    update = _stacked([[chunks[0].update] for chunks in stages], shape).max(-1)
    return np.asarray(passes + reduction + update + around.speeds.step_overhead)


def combination_bytes(config: RunConfig, spec: ModelSpec, cluster: ClusterSpec, choices: Combination) -> np.ndarray | None:
    """Bytes of the device that the fullest rank of each choice needs; ``None`` where only single estimates know."""
    changed = with_combination(config, choices)
    settings = resolve_settings(changed)
    if settings.accelerator is Accelerator.cpu or config.training.freeze:
        return None
    layout = ParallelLayout(
        tensor_parallel_size=1,
        pipeline_parallel_size=choices.pipeline_parallel_size,
        data_parallel_size=1,
        train_batch_size=1,
        train_micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=1,
    )
    estimator = Estimator(config=changed, spec=spec, cluster=cluster, layout=layout, settings=settings, trainable_shares=None)
    return estimate_many(
        estimator,
        Layouts(
            tensor_parallel_size=choices.tensor_parallel_size,
            pipeline_parallel_size=choices.pipeline_parallel_size,
            data_parallel_size=choices.data_parallel_size,
            train_micro_batch_size_per_gpu=choices.micro_batch,
            gradient_accumulation_steps=choices.micro_batches,
            zero_stage=choices.zero_stage,
            recompute=np.array(choices.recompute.value),
        ),
    )


def with_combination(config: RunConfig, choices: Combination) -> RunConfig:
    """The configuration with what all choices have in common."""
    parallelism = replace(
        config.parallelism,
        pipeline_parallel_size=choices.pipeline_parallel_size,
        schedule=choices.schedule,
        sequence_parallel=choices.sequence_parallel,
    )
    return replace(
        config,
        parallelism=parallelism,
        zero=replace(config.zero, stage=choices.zero_stage),
        offload=replace(config.offload, optimizer_device=choices.optimizer_device, param_device=choices.param_device),
        activation_checkpointing=replace(config.activation_checkpointing, policy=choices.recompute),
    )


def _step(config: RunConfig, spec: ModelSpec, cluster: ClusterSpec, choices: Combination) -> TrainingStep:
    changed = with_combination(config, choices)
    settings = resolve_settings(changed)
    checkpointing = changed.activation_checkpointing
    return TrainingStep(
        spec=spec,
        cluster=cluster,
        settings=settings,
        passed=Pass(
            micro_batch=choices.micro_batch,
            sequence_length=config.data.sequence_length,
            dtype_bytes=DTYPE_BYTES[settings.dtype],
            tensor_parallel_size=choices.tensor_parallel_size,
            sequence_parallel=choices.sequence_parallel,
            recompute=choices.recompute,
            recompute_interval=checkpointing.interval,
            partition_activations=checkpointing.partition_activations,
            cpu_checkpointing=checkpointing.cpu_checkpointing,
            accelerator=settings.accelerator,
        ),
        pipeline_parallel_size=choices.pipeline_parallel_size,
        data_parallel_size=choices.data_parallel_size,
        micro_batches=choices.micro_batches,
        schedule=choices.schedule,
    )


def _dual_pipe_v_bound(stages: Sequence[Sequence[StageSeconds]], both: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """No rank begins before the first micro-batch has come down to it, nor ends before the last has gone up from it."""
    shape = rounds.shape
    down = _stacked([[chunks[0].forward, chunks[0].backward] for chunks in stages], shape)
    return np.asarray((rounds[:, np.newaxis] * both + np.cumsum(down, -1) - down).max(-1))


def _stacked(chunks: Sequence[Sequence[object]], shape: tuple[int, ...]) -> np.ndarray:
    """The sums over the chunks of each stage: (choices, stages)."""
    totals = [sum(np.broadcast_to(np.asarray(part, dtype=float), shape) for part in parts) for parts in chunks]
    return np.stack(totals, -1)
