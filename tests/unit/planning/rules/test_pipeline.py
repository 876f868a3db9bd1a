"""Pipelines and how they are cut: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import Family, OffloadDevice, PipelineSchedule, Precision
from tests.unit.planning.configurations import gpu_cluster, plan_of, run_config
from tests.unit.planning.rules.broken import ERROR, INFO, PP, TP, WARNING, Broken, check, each, pipeline, tensor

DUAL = {"parallelism__schedule": PipelineSchedule.dual_pipe_v}
SMALL_ODD = {
    "model__hidden_size": 6,
    "model__num_attention_heads": 4,
    "model__num_key_value_heads": 4,
    "model__head_dim": 16,
    "model__family": Family.qwen3,
}

CASES = [
    Broken("pipeline-layers", ERROR, PP, pipeline(8, model__num_hidden_layers=4), ("8 stages for 4 layers",), (f"{PP}=4",)),
    Broken("pipeline-layers", ERROR, PP, pipeline(4, **DUAL, model__num_hidden_layers=6), ("8 stages for 6",), (f"{PP}=3",)),
    Broken("pipeline-balance", WARNING, PP, pipeline(8, model__num_hidden_layers=20), ("3 layers", "2"), (f"{PP}=4",)),
    Broken(
        "pipeline-balance",
        WARNING,
        PP,
        pipeline(8, model__num_hidden_layers=20),
        (),
        ("parallelism.partition_method=balanced",),
    ),
    Broken("pipeline-balance", WARNING, PP, pipeline(4, **DUAL, model__num_hidden_layers=20), ("8 stages",), (f"{PP}=2",)),
    Broken(
        "pipeline-boundary",
        ERROR,
        TP,
        pipeline(
            2,
            **tensor(4, **SMALL_ODD),
            cluster=gpu_cluster(devices_per_host=8),
            data__sequence_length=33,
            training__train_micro_batch_size_per_gpu=1,
        ),
        ("micro-batch 1 x sequence 33 x hidden 6",),
        (f"{TP}=2",),
    ),
    Broken(
        "dual-pipe-v",
        ERROR,
        "parallelism.schedule",
        {**DUAL},
        ("at least 2 stages",),
        ("parallelism.schedule=one_f_one_b",),
    ),
    Broken(
        "dual-pipe-v",
        ERROR,
        "training.gradient_accumulation_steps",
        pipeline(4, **DUAL),
        ("2 x 4 micro-batches", "there are 4"),
        ("training.gradient_accumulation_steps=8",),
    ),
    Broken(
        "partition-method",
        ERROR,
        "parallelism.partition_method",
        pipeline(2, parallelism__partition_method="unifrom"),
        ("'unifrom'", "balanced"),
        ("parallelism.partition_method=uniform",),
    ),
    Broken(
        "partition-method",
        ERROR,
        "parallelism.partition_method",
        pipeline(2, parallelism__partition_method="type:("),
        ("'type:('", "missing )"),
        ("parallelism.partition_method=type:decoder",),
    ),
    Broken(
        "partition-type",
        ERROR,
        "parallelism.partition_method",
        pipeline(4, parallelism__partition_method="type:GPT2"),
        ("finds 0 of the layers (TokenEmbedding, LlamaDecoderLayer, FinalNorm, OutputHead)", "4 stages"),
        ("parallelism.partition_method=type:LlamaDecoderLayer",),
    ),
    Broken(
        "partition-explicit",
        ERROR,
        "parallelism.partition_boundaries",
        pipeline(2, parallelism__partition_method="explicit"),
        ("no boundaries",),
        ("parallelism.partition_method=uniform",),
    ),
    Broken(
        "partition-explicit",
        ERROR,
        "parallelism.partition_boundaries",
        pipeline(2, parallelism__partition_boundaries=[0, 9, 19]),
        ("partition_method=uniform",),
        ("parallelism.partition_method=explicit",),
    ),
    Broken(
        "partition-boundaries",
        ERROR,
        "parallelism.partition_boundaries",
        pipeline(2, parallelism__partition_method="explicit", parallelism__partition_boundaries=[1, 9, 9, 20]),
        ("4 boundaries, where 2 stages have 3", "the first is 1", "the last is 20 and not 19", "a stage is empty"),
        ("parallelism.partition_boundaries=[0,9,19]",),
    ),
    Broken(
        "partition-boundaries",
        ERROR,
        "parallelism.partition_boundaries",
        pipeline(2, **DUAL, parallelism__partition_method="explicit", parallelism__partition_boundaries=[0, 9, 19]),
        ("4 stages (two for each coordinate) have 5",),
        ("parallelism.partition_boundaries=[0,4,9,14,19]",),
    ),
    Broken("pipeline-zero-stage", ERROR, "zero.stage", pipeline(2, zero__stage=3), ("3", "2 stages"), ("zero.stage=1",)),
    Broken("pipeline-zero-stage", ERROR, "zero.stage", pipeline(2, zero__stage=2), ("2",), ("zero.stage=1",)),
    Broken(
        "pipeline-bubble",
        WARNING,
        "training.gradient_accumulation_steps",
        pipeline(4, training__gradient_accumulation_steps=1),
        ("1 micro-batches over 4 stages", "75%"),
        ("training.gradient_accumulation_steps=16",),
    ),
    Broken(
        "pipeline-overlap", WARNING, "zero.overlap_comm", pipeline(2, zero__overlap_comm=True), (), ("zero.overlap_comm=false",)
    ),
    Broken(
        "pipeline-options",
        INFO,
        "parallelism.schedule",
        {"parallelism__schedule": PipelineSchedule.gpipe},
        ("gpipe",),
        (f"{PP}=2",),
    ),
    Broken(
        "pipeline-options",
        INFO,
        "parallelism.partition_method",
        {"parallelism__partition_method": "parameters"},
        ("parameters",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


@pytest.mark.parametrize(("stage", "precision"), [(0, Precision.fp32), (1, Precision.fp32), (1, Precision.fp16)])
def test_a_pipeline_goes_with_every_format_and_with_an_offloaded_optimizer(stage, precision):
    changes = pipeline(2, zero__stage=stage, precision__dtype=precision, training__gradient_accumulation_steps=8)
    assert plan_of(run_config(**changes)).findings == ()
    if stage == 1:
        assert plan_of(run_config(**changes, offload__optimizer_device=OffloadDevice.cpu)).findings == ()
