"""Time and device memory of all choices of a combination at once: what a plan of each of them would say, or at least."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.cost.many import step_seconds_many
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.many import Layouts, estimate_many
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.search.space import Combination

_ANY_LAYOUT = ParallelLayout(
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    data_parallel_size=1,
    train_batch_size=1,
    train_micro_batch_size_per_gpu=1,
    gradient_accumulation_steps=1,
)
"""Estimates of many layouts take their sizes from elsewhere."""


def combination_seconds(config: RunConfig, spec: ModelSpec, cluster: ClusterSpec, choices: Combination) -> np.ndarray:
    """Seconds of a step of each choice: those of its plan, or with DualPipeV no more."""
    return step_seconds_many(_estimator(config, spec, cluster, choices), _layouts(choices))


def combination_bytes(config: RunConfig, spec: ModelSpec, cluster: ClusterSpec, choices: Combination) -> np.ndarray | None:
    """Bytes of the device that the fullest rank of each choice needs; ``None`` where only a plan tells."""
    estimator = _estimator(config, spec, cluster, choices)
    if estimator.settings.accelerator is Accelerator.cpu or config.training.freeze:
        return None
    return estimate_many(estimator, _layouts(choices))


def _estimator(config: RunConfig, spec: ModelSpec, cluster: ClusterSpec, choices: Combination) -> Estimator:
    changed = _with_combination(config, choices)
    return Estimator(
        config=changed,
        spec=spec,
        cluster=cluster,
        layout=_ANY_LAYOUT,
        settings=resolve_settings(changed),
        trainable_shares=None,
    )


def _layouts(choices: Combination) -> Layouts:
    return Layouts(
        tensor_parallel_size=choices.tensor_parallel_size,
        pipeline_parallel_size=choices.pipeline_parallel_size,
        data_parallel_size=choices.data_parallel_size,
        train_micro_batch_size_per_gpu=choices.micro_batch,
        gradient_accumulation_steps=choices.micro_batches,
        zero_stage=choices.zero_stage,
        recompute=np.array(choices.recompute.value),
    )


def _with_combination(config: RunConfig, choices: Combination) -> RunConfig:
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
