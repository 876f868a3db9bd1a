"""Each rule: a configuration that breaks it, what it says, and that the fix mends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.config.enums import (
    AttentionImplementation,
    DataSource,
    Family,
    LrSchedule,
    OffloadDevice,
    OptimizerType,
    PipelineSchedule,
    Precision,
    RecomputePolicy,
)
from orchestrator.findings import Severity
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.rules.ranges import RANGES
from orchestrator.planning.rules.registry import RULES
from tests.unit.planning.configurations import cpu_cluster, gpu_cluster, overridden, plan_of, run_config

ERROR, WARNING, INFO = Severity.error, Severity.warning, Severity.info
FLASH = AttentionImplementation.flash_attention_2
NVME, CPU = OffloadDevice.nvme, OffloadDevice.cpu


@dataclass(frozen=True)
class Broken:
    """A broken rule. ``says`` are pieces of the message, ``mended_by`` overrides that are part of the fix and mend it."""

    rule: str
    severity: Severity
    field: str
    changes: dict[str, Any]
    says: tuple[str, ...] = ()
    mended_by: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)


def tensor(size, **changes):
    return {"parallelism__tensor_parallel_size": size} | changes


def pipeline(size, **changes):
    return {"parallelism__pipeline_parallel_size": size} | changes


def optimizer(kind, **changes):
    return {"optimizer__type": kind} | changes


def recompute(policy, **options):
    return {"activation_checkpointing__policy": policy} | {
        f"activation_checkpointing__{name}": value for name, value in options.items()
    }


DUAL = {"parallelism__schedule": PipelineSchedule.dual_pipe_v}
SMALL_ODD = {
    "model__hidden_size": 6,
    "model__num_attention_heads": 4,
    "model__num_key_value_heads": 4,
    "model__head_dim": 16,
    "model__family": Family.qwen3,
}
TP, PP = "parallelism.tensor_parallel_size", "parallelism.pipeline_parallel_size"

CASES = [
    Broken(
        "tensor-attention-heads",
        ERROR,
        "model.num_attention_heads",
        tensor(2, model__hidden_size=448, model__num_attention_heads=7, model__num_key_value_heads=7),
        ("7 query heads", "tensor_parallel_size=2"),
        (f"{TP}=1",),
    ),
    Broken(
        "tensor-key-value-heads",
        ERROR,
        "model.num_key_value_heads",
        tensor(4, model__hidden_size=768, model__num_attention_heads=12, model__num_key_value_heads=6),
        ("6 key and value heads",),
        (f"{TP}=2",),
    ),
    Broken(
        "tensor-key-value-heads",
        INFO,
        "model.num_key_value_heads",
        tensor(8, model__num_key_value_heads=2),
        ("copied to 4 ranks",),
    ),
    Broken(
        "sequence-parallel",
        ERROR,
        "parallelism.sequence_parallel",
        {"parallelism__sequence_parallel": True},
        ("tensor_parallel_size=1",),
        ("parallelism.sequence_parallel=false",),
    ),
    Broken(
        "sequence-parallel",
        ERROR,
        "data.sequence_length",
        tensor(8, parallelism__sequence_parallel=True, data__sequence_length=1020),
        ("1020", "tensor_parallel_size=8"),
        ("data.sequence_length=1016",),
    ),
    Broken(
        "tensor-intermediate-size",
        ERROR,
        "model.intermediate_size",
        tensor(8, model__intermediate_size=2820),
        ("2820",),
        (f"{TP}=4",),
    ),
    Broken("tensor-vocabulary", INFO, "model.vocab_size", tensor(8, model__vocab_size=50257), ("7 are added",)),
    Broken(
        "tensor-hosts",
        WARNING,
        TP,
        tensor(16, cluster=gpu_cluster(hosts=2), model__num_key_value_heads=16),
        ("16 ranks", "8 devices"),
        (f"{TP}=8",),
    ),
    Broken(
        "tensor-hosts",
        WARNING,
        TP,
        tensor(4, model__num_key_value_heads=16),
        ("4 ranks", "6 devices"),
        (f"{TP}=2",),
        {"hosts": [Host(name="a", slots=6), Host(name="b", slots=6)]},
    ),
    Broken(
        "mixed-slots",
        WARNING,
        "cluster.hostfile",
        {},
        ("4, 8",),
        (),
        {"hosts": [Host(name="a", slots=8), Host(name="b", slots=4)]},
    ),
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
    Broken(
        "recompute-interval",
        INFO,
        "activation_checkpointing.interval",
        recompute(RecomputePolicy.full, interval=4),
        ("4", "policy=full"),
        ("activation_checkpointing.policy=every_k_layers",),
    ),
    Broken(
        "recompute-interval",
        WARNING,
        "activation_checkpointing.interval",
        recompute(RecomputePolicy.every_k_layers, interval=20),
        ("20 layers", "(16)"),
        ("activation_checkpointing.interval=4",),
    ),
    Broken(
        "recompute-partition",
        ERROR,
        "activation_checkpointing.partition_activations",
        tensor(2, **recompute(RecomputePolicy.selective, partition_activations=True)),
        ("policy=selective keeps none",),
        ("activation_checkpointing.policy=full",),
    ),
    Broken(
        "recompute-partition",
        ERROR,
        "activation_checkpointing.partition_activations",
        recompute(RecomputePolicy.full, partition_activations=True),
        ("tensor_parallel_size=1",),
        ("activation_checkpointing.partition_activations=false",),
    ),
    Broken(
        "recompute-partition",
        INFO,
        "activation_checkpointing.partition_activations",
        tensor(2, **recompute(RecomputePolicy.full, partition_activations=True), parallelism__sequence_parallel=True),
        ("no effect",),
        ("activation_checkpointing.partition_activations=false",),
    ),
    Broken(
        "recompute-host",
        ERROR,
        "activation_checkpointing.cpu_checkpointing",
        recompute(RecomputePolicy.none, cpu_checkpointing=True),
        ("policy=none keeps none",),
        ("activation_checkpointing.policy=full",),
    ),
    Broken(
        "offload-ratio",
        ERROR,
        "offload.optimizer_ratio",
        {"zero__stage": 2, "offload__optimizer_device": CPU, "offload__optimizer_ratio": 0.5},
        ("0.5", "2 and cpu"),
        ("offload.optimizer_ratio=1",),
    ),
    Broken(
        "offload-ratio-groups",
        WARNING,
        "offload.optimizer_ratio",
        {"zero__stage": 3, "offload__optimizer_device": CPU, "offload__optimizer_ratio": 0.9},
        ("0.9 of 2 sub-groups", "nothing stays"),
        ("zero.sub_group_size=1986824",),
    ),
    Broken("freeze-pattern", ERROR, "training.freeze", {"training__freeze": ["norm", "layers.("]}, ("'layers.('",)),
    Broken(
        "freeze-match",
        ERROR,
        "training.freeze",
        {"training__freeze": [r"model\.embed_token\.weight"]},
        ("finds none of the 147 parameters of small",),
    ),
    Broken(
        "freeze-all",
        ERROR,
        "training.freeze",
        {"training__freeze": ["model", "lm_head"]},
        ("nothing",),
        ("training.freeze=[]",),
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
    Broken(
        "nvme-prefetch",
        ERROR,
        "zero.stage3_prefetch_bucket_size",
        {"zero__stage": 3, "offload__param_device": NVME, "offload__nvme_path": "/nvme"},
        ("fetched ahead", "second step"),
        ("zero.stage3_prefetch_bucket_size=0",),
    ),
    Broken(
        "fp16-stage",
        ERROR,
        "zero.stage",
        {"precision__dtype": Precision.fp16, "zero__stage": 0},
        ("does not scale the loss",),
        ("zero.stage=1",),
    ),
    Broken(
        "attention-kernel",
        ERROR,
        "model.attention_implementation",
        {"cluster": cpu_cluster(), "model__attention_implementation": FLASH},
        ("CUDA", "CPU is none"),
        ("model.attention_implementation=sdpa",),
    ),
    Broken(
        "attention-kernel",
        ERROR,
        "model.attention_implementation",
        {"precision__dtype": Precision.fp32, "model__attention_implementation": FLASH},
        ("fp16", "precision.dtype is fp32"),
        ("precision.dtype=bf16",),
    ),
    Broken(
        "zero-single-rank",
        INFO,
        "zero.stage",
        {"cluster": gpu_cluster(devices_per_host=1)},
        ("stage 1", "one data-parallel rank"),
    ),
    Broken(
        "zero-single-rank",
        WARNING,
        "zero.stage",
        {"cluster": gpu_cluster(devices_per_host=1), "zero__stage": 3},
        ("stage 3",),
        ("zero.stage=1",),
    ),
    Broken(
        "zero-allgather-bucket",
        ERROR,
        "zero.allgather_bucket_size",
        {"zero__allgather_bucket_size": 1001},
        ("1001",),
        ("zero.allgather_bucket_size=1002",),
    ),
    Broken(
        "zero-round-robin",
        INFO,
        "zero.round_robin_gradients",
        {"zero__round_robin_gradients": True},
        (),
        ("zero.round_robin_gradients=false",),
    ),
    Broken(
        "offload-optimizer-stage",
        ERROR,
        "offload.optimizer_device",
        {"zero__stage": 0, "offload__optimizer_device": CPU},
        ("cpu", "zero.stage=0"),
        ("zero.stage=1",),
    ),
    Broken(
        "offload-param-stage",
        ERROR,
        "offload.param_device",
        {"zero__stage": 2, "offload__param_device": CPU},
        ("cpu", "zero.stage=2"),
        ("zero.stage=3",),
    ),
    Broken(
        "nvme-stage",
        ERROR,
        "offload.optimizer_device",
        {"zero__stage": 2, "offload__optimizer_device": NVME, "offload__nvme_path": "/disk"},
        ("nvme", "zero.stage=2"),
        ("zero.stage=3",),
    ),
    Broken(
        "nvme-path",
        ERROR,
        "offload.nvme_path",
        {"zero__stage": 3, "offload__optimizer_device": NVME, "offload__param_device": NVME},
        ("offload.optimizer_device", "offload.param_device"),
        ("offload.nvme_path=/a/folder/on/a/local/nvme/disk",),
    ),
    Broken("nvme-path", INFO, "offload.nvme_path", {"offload__nvme_path": "/disk"}, (), ("offload.nvme_path=null",)),
    Broken(
        "nvme-param-buffer",
        ERROR,
        "offload.param_buffer_size",
        {
            "zero__stage": 3,
            "offload__param_device": NVME,
            "offload__nvme_path": "/disk",
            "offload__param_buffer_size": 1_000_000,
        },
        ("4096000", "1000000"),
        ("offload.param_buffer_size=4096000",),
    ),
    Broken(
        "device-precision",
        ERROR,
        "precision.dtype",
        {"cluster": gpu_cluster(device_name="V100", precisions=[Precision.fp32, Precision.fp16])},
        ("V100", "bf16", "fp32, fp16"),
        ("precision.dtype=fp16",),
    ),
    Broken(
        "stage0-accumulation",
        ERROR,
        "precision.grad_accum_dtype",
        {"zero__stage": 0, "precision__grad_accum_dtype": Precision.fp32},
        ("bf16", "fp32"),
        ("zero.stage=1",),
    ),
    Broken(
        "accumulation-precision",
        WARNING,
        "precision.grad_accum_dtype",
        {"precision__dtype": Precision.fp32, "precision__grad_accum_dtype": Precision.bf16},
        ("fp32", "bf16"),
        ("precision.grad_accum_dtype=fp32",),
    ),
    Broken("pipeline-bf16-accumulation", WARNING, "zero.stage", pipeline(2, zero__stage=0), ("bf16",), ("zero.stage=1",)),
    Broken(
        "initial-loss-scale",
        WARNING,
        "precision.initial_scale_power",
        {"precision__dtype": Precision.fp16, "precision__initial_scale_power": 32},
        ("2^32", "16 steps"),
        ("precision.initial_scale_power=16",),
    ),
    Broken(
        "loss-scale-format",
        INFO,
        "precision.loss_scale",
        {"precision__loss_scale": 128.0},
        ("128", "bf16"),
        ("precision.loss_scale=0",),
    ),
    Broken(
        "predivide-reduce-scatter",
        ERROR,
        "communication.prescale_gradients",
        {"zero__stage": 2, "communication__prescale_gradients": True},
        ("stage 2",),
        ("communication.prescale_gradients=false",),
    ),
    Broken(
        "predivide-reduce-scatter",
        ERROR,
        "communication.gradient_predivide_factor",
        {"zero__stage": 3, "communication__gradient_predivide_factor": 2.0},
        ("2.0", "stage 3"),
        ("communication.gradient_predivide_factor=1",),
    ),
    Broken(
        "communication-precision",
        WARNING,
        "communication.communication_data_type",
        {"communication__communication_data_type": Precision.fp16},
        ("bf16", "fp16"),
        ("communication.communication_data_type=bf16",),
    ),
    Broken(
        "sequence-length",
        ERROR,
        "data.sequence_length",
        {"data__sequence_length": 4096},
        ("4096", "2048"),
        ("data.sequence_length=2048",),
    ),
    Broken(
        "tokenizer-vocabulary",
        ERROR,
        "data.tokenizer_vocab_size",
        {"data__source": DataSource.python_stdlib, "data__tokenizer_vocab_size": 50000},
        ("50000", "32000"),
        ("data.tokenizer_vocab_size=32000",),
    ),
    Broken(
        "synthetic-tokens",
        ERROR,
        "data.synthetic_tokens",
        {"data__synthetic_tokens": 10, "data__sequence_length": 32},
        ("10", "32"),
        ("data.synthetic_tokens=65",),
    ),
    Broken("data-path", ERROR, "data.path", {"data__source": DataSource.text}, ("text",), ("data.path=/your/text",)),
    Broken("data-path", INFO, "data.path", {"data__path": "/text"}, ("synthetic",), ("data.path=null",)),
    Broken(
        "ignored-labels",
        INFO,
        "data.ignore_fraction",
        {"data__source": DataSource.python_stdlib, "data__ignore_fraction": 0.5},
        ("0.5",),
        ("data.ignore_fraction=0",),
    ),
    Broken(
        "warmup-steps",
        WARNING,
        "lr_scheduler.warmup_steps",
        {"lr_scheduler__warmup_steps": 100},
        ("100", "training.max_steps=100"),
        ("lr_scheduler.warmup_steps=10",),
    ),
    Broken(
        "decay-steps",
        ERROR,
        "lr_scheduler.decay_steps",
        {"lr_scheduler__type": LrSchedule.wsd, "lr_scheduler__warmup_steps": 60, "lr_scheduler__decay_steps": 50},
        ("60", "50", "100"),
        ("lr_scheduler.decay_steps=40",),
    ),
    Broken(
        "decay-steps",
        INFO,
        "lr_scheduler.decay_steps",
        {"lr_scheduler__decay_steps": 50},
        ("cosine",),
        ("lr_scheduler.decay_steps=null",),
    ),
    Broken("minimum-rate", ERROR, "lr_scheduler.min_lr", {"lr_scheduler__min_lr": 1.0}, ("1.0", "0.0003")),
    Broken(
        "optimizer-betas", ERROR, "optimizer.betas", {"optimizer__betas": [0.9]}, ("[0.9]",), ("optimizer.betas=[0.9,0.95]",)
    ),
    Broken("optimizer-betas", ERROR, "optimizer.betas", {"optimizer__betas": [0.9, 1.0]}, ("1.0",)),
    Broken(
        "optimizer-device",
        ERROR,
        "optimizer.type",
        optimizer(OptimizerType.Lion, cluster=cpu_cluster()),
        ("Lion", "CPU"),
        ("offload.optimizer_device=cpu",),
    ),
    Broken(
        "optimizer-adagrad",
        ERROR,
        "optimizer.type",
        optimizer(OptimizerType.Adagrad, zero__stage=2),
        ("zero.stage=2", "bf16"),
        ("offload.optimizer_device=cpu",),
    ),
    Broken(
        "optimizer-adagrad",
        ERROR,
        "optimizer.type",
        optimizer(OptimizerType.Adagrad, zero__stage=1, precision__dtype=Precision.fp32),
        (),
        ("zero.stage=0",),
    ),
    Broken("optimizer-muon-layout", ERROR, TP, optimizer(OptimizerType.Muon, **tensor(2)), ("whole matrices",), (f"{TP}=1",)),
    Broken("optimizer-muon-layout", ERROR, PP, optimizer(OptimizerType.Muon, **pipeline(2)), ("whole matrices",), (f"{PP}=1",)),
    Broken(
        "optimizer-muon-reduce-scatter",
        ERROR,
        "zero.reduce_scatter",
        optimizer(OptimizerType.Muon, zero__stage=3),
        (),
        ("zero.reduce_scatter=false",),
    ),
    Broken(
        "optimizer-muon-clipping",
        ERROR,
        "training.gradient_clipping",
        optimizer(OptimizerType.Muon, zero__stage=2),
        ("1.0", "update"),
        ("training.gradient_clipping=0",),
    ),
    Broken(
        "optimizer-ratio",
        ERROR,
        "offload.optimizer_ratio",
        optimizer(OptimizerType.Lion, zero__stage=3, offload__optimizer_device=CPU, offload__optimizer_ratio=0.5),
        ("0.5", "Lion"),
        ("offload.optimizer_ratio=1",),
    ),
    Broken(
        "optimizer-nvme",
        ERROR,
        "offload.optimizer_device",
        optimizer(OptimizerType.SGD, zero__stage=3, offload__optimizer_device=NVME, offload__nvme_path="/nvme"),
        ("nvme", "SGD"),
        ("offload.optimizer_device=cpu",),
    ),
    Broken(
        "optimizer-adam-lr",
        INFO,
        "optimizer.adam_lr",
        optimizer(OptimizerType.AdamW, optimizer__adam_lr=1e-3),
        ("0.001",),
        ("optimizer.adam_lr=null",),
    ),
    Broken("value-range", ERROR, "zero.stage", {"zero__stage": 4}, ("4",), ("zero.stage=3",)),
]


def name_of(case):
    return f"{case.rule}: {case.field} {case.severity.value}"


def findings(config, case):
    plan = plan_of(config, **case.arguments)
    return [
        finding
        for finding in plan.findings
        if (finding.rule, finding.severity, finding.field) == (case.rule, case.severity, case.field)
    ]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_broken_rule_says_so(case):
    (finding,) = findings(run_config(**case.changes), case)
    for piece in case.says:
        assert piece in finding.message
    assert finding.fix


@pytest.mark.parametrize("case", [case for case in CASES if case.mended_by], ids=name_of)
def test_the_fix_mends_it(case):
    config = run_config(**case.changes)
    (finding,) = findings(config, case)
    for override in case.mended_by:
        assert override in finding.fix
    assert findings(overridden(config, case.mended_by), case) == []


def test_the_name_that_was_meant_is_shown():
    (finding,) = plan_of(run_config(training__freeze=[r"model\.embed_token\.weight"])).findings
    assert "model.embed_tokens.weight" in finding.fix


@pytest.mark.parametrize(("stage", "precision"), [(0, Precision.fp32), (1, Precision.fp32), (1, Precision.fp16)])
def test_a_pipeline_goes_with_every_format_and_with_an_offloaded_optimizer(stage, precision):
    changes = pipeline(2, zero__stage=stage, precision__dtype=precision, training__gradient_accumulation_steps=8)
    assert plan_of(run_config(**changes)).findings == ()
    if stage == 1:
        assert plan_of(run_config(**changes, offload__optimizer_device=CPU)).findings == ()


def test_tensor_parallelism_goes_with_every_zero_stage():
    for stage in range(4):
        assert plan_of(run_config(**tensor(2, zero__stage=stage, parallelism__sequence_parallel=True))).findings == ()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_tried_here(rule):
    assert rule in {case.rule for case in CASES}
    assert RULES[rule].description


@pytest.mark.parametrize("kind", OptimizerType)
@pytest.mark.parametrize("stage", range(4))
def test_every_optimizer_goes_with_every_stage_on_gpus_with_what_it_needs(kind, stage):
    """Adagrad offloaded, where ZeRO is; Muon without reduce-scatter and clipping."""
    needs: dict[str, Any] = {}
    if kind is OptimizerType.Adagrad:
        needs = {"offload__optimizer_device": CPU} if stage else {"precision__dtype": Precision.fp32}
    if kind is OptimizerType.Muon:
        needs = {"zero__reduce_scatter": False, "training__gradient_clipping": 0.0}
    assert plan_of(run_config(**optimizer(kind, zero__stage=stage, **needs))).findings == ()


def test_a_sound_configuration_breaks_none():
    assert plan_of(run_config()).findings == ()


@pytest.mark.parametrize("field", RANGES)
def test_a_number_out_of_its_range_is_refused(field):
    name = field.replace(".", "__")
    for value in (-1, 10**18, float("nan"), float("inf")):
        broken = [finding for finding in plan_of(run_config(**{name: value})).findings if finding.rule == "value-range"]
        assert [finding.field for finding in broken] == [field]
        assert str(value) in broken[0].message
        assert f"set {field}=" in broken[0].fix


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("training.max_steps", 0, "training.max_steps=1"),
        ("data.held_out_fraction", 1.0, "below 1"),
        ("planner.memory_margin", 0.9, "planner.memory_margin=0.5"),
        ("precision.min_loss_scale", 0, "precision.min_loss_scale=1"),
        ("offload.optimizer_buffer_count", 3, "offload.optimizer_buffer_count=4"),
        ("optimizer.eps", 0.0, "above 0"),
    ],
)
def test_bounds_are_where_they_should_be(field, value, fix):
    (finding,) = [
        finding for finding in plan_of(run_config(**{field.replace(".", "__"): value})).findings if finding.field == field
    ]
    assert fix in finding.fix


def test_all_broken_rules_are_reported_together():
    plan = plan_of(
        run_config(
            parallelism__pipeline_parallel_size=2,
            zero__stage=3,
            offload__optimizer_device=NVME,
            data__source=DataSource.text,
            training__max_steps=-1,
            model__num_attention_heads=7,
            parallelism__tensor_parallel_size=2,
            training__train_batch_size=7,
        )
    )
    assert plan.verdict == "invalid"
    assert "tensor-attention-heads" in {finding.rule for finding in plan.findings}
    assert {
        "zero.stage",
        "offload.nvme_path",
        "data.path",
        "training.max_steps",
        "training.train_batch_size",
        "model.num_attention_heads",
    } <= {finding.field for finding in plan.findings}
