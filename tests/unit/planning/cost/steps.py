"""Training steps for tests: a run's configuration as the cost model takes it."""

from __future__ import annotations

from typing import Any

from orchestrator.config.enums import AttentionImplementation, Family
from orchestrator.config.schema import ClusterConfig, ModelConfig, RunConfig
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.cluster_spec import cluster_spec_from_config
from orchestrator.planning.cost.step_time import StepTime, step_time
from orchestrator.planning.cost.training_step import training_step
from orchestrator.planning.layout import layout_from_config
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.planning.partition import Partition, partition_layers, stages_per_rank
from orchestrator.units import GIB
from tests.unit.planning.configurations import changed, preset, run_config

GPT3 = ModelConfig(
    name="gpt3_175b",
    family=Family.gpt2,
    vocab_size=51200,
    hidden_size=12288,
    num_hidden_layers=96,
    num_attention_heads=96,
    max_position_embeddings=2048,
    attention_implementation=AttentionImplementation.eager,
)
LLAMA_2_7B = ModelConfig(
    name="llama_2_7b",
    family=Family.llama,
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
    max_position_embeddings=4096,
)


def gpu_run(cluster: str = "dgx_a100_80", model: ModelConfig | None = None, **changes: Any) -> RunConfig:
    """The small Llama of the planning tests, or ``model``, on hosts whose speeds are known."""
    config = run_config(cluster=preset("cluster", cluster, ClusterConfig))
    if model is not None:
        config.model = model
    return changed(config, **changes)


def estimated(config: RunConfig) -> tuple[Estimator, Partition]:
    """What the planner knows of a run when it comes to its time."""
    cluster, findings = cluster_spec_from_config(config.cluster, hosts=None, machine_memory_bytes=64 * GIB)
    assert cluster is not None, findings
    layout, findings = layout_from_config(config, cluster.num_devices)
    assert layout is not None, findings
    spec = model_spec_from_config(config.model)
    stages, parallelism = layout.pipeline_parallel_size, config.parallelism
    partition = partition_layers(
        spec,
        pipeline_parallel_size=stages,
        method=parallelism.partition_method,
        boundaries=parallelism.partition_boundaries,
        stages_per_rank=stages_per_rank(parallelism.schedule, stages),
    )
    estimator = Estimator(
        config=config, spec=spec, cluster=cluster, layout=layout, settings=resolve_settings(config), trainable_shares=None
    )
    return estimator, partition


def time_of(config: RunConfig) -> StepTime:
    """The predicted step of ``config``."""
    estimator, partition = estimated(config)
    return step_time(training_step(estimator), partition)
