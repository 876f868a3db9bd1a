"""Runs whose measured steps are those of the cost model with other constants, and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestrator.config.enums import OffloadDevice, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.planning.calibration.fit import MeasuredStep, predicted_seconds
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.cost.training_step import training_step
from tests.unit.planning.cost.steps import LLAMA_2_7B, estimated, gpu_run

LAYOUTS: Sequence[Mapping[str, Any]] = (
    {"zero__stage": 1},
    {"zero__stage": 0, "training__train_micro_batch_size_per_gpu": 8},
    {"zero__stage": 2, "training__gradient_accumulation_steps": 1},
    {"zero__stage": 3},
    {"parallelism__tensor_parallel_size": 8, "training__train_micro_batch_size_per_gpu": 16},
    {"parallelism__pipeline_parallel_size": 4, "training__gradient_accumulation_steps": 16},
    {"zero__stage": 1, "activation_checkpointing__policy": RecomputePolicy.full, "data__sequence_length": 2048},
    {"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu, "training__gradient_accumulation_steps": 2},
    {"training__train_micro_batch_size_per_gpu": 32, "training__gradient_accumulation_steps": 16},
)


def run_of(config: RunConfig, *, cluster: ClusterSpec | None = None) -> MeasuredStep:
    """A run that has not been measured yet, on its own cluster or on ``cluster``."""
    estimator, partition = estimated(config)
    step = training_step(estimator)
    if cluster is not None:
        step = replace(step, cluster=cluster)
    return MeasuredStep(name="run", step=step, partition=partition, seconds=1.0, relative_error=0.01)


def measured(runs: Sequence[MeasuredStep], truth: Mapping[str, float], *, noise: float = 0.0) -> list[MeasuredStep]:
    """``runs`` as they would take where the constants are ``truth`` times those of their cluster."""
    drawn = np.random.default_rng(1).normal(0.0, noise, len(runs)) if noise else np.zeros(len(runs))
    return [
        replace(run, name=f"run {number}", seconds=predicted_seconds(run, truth) * float(np.exp(error)))
        for number, (run, error) in enumerate(zip(runs, drawn, strict=True))
    ]


def gpu_runs(**changes: Any) -> list[MeasuredStep]:
    """One run for each of ``LAYOUTS`` on eight H100."""
    return [run_of(gpu_run("dgx_h100", LLAMA_2_7B, **layout, **changes)) for layout in LAYOUTS]
