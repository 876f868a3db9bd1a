"""Each lint rule speaks of the key a user has to change, and is silent about files that are in order."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from packaging.version import Version

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config import auto, ingest, read
from orchestrator.deepspeed_config.auto import ARGUMENT_KEYS
from orchestrator.deepspeed_config.lint import LINT_RULES, LintContext, lint
from orchestrator.findings import Severity
from tests.unit.deepspeed_config.drawn import BASES

HF = MappingProxyType({name: key.default for name, key in ARGUMENT_KEYS.items()})


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


def optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def scheduler(kind: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


@dataclass(frozen=True)
class Case:
    """Keys beside a micro-batch of 1 on eight devices of one host, and the finding they get."""

    rule: str
    severity: str
    key: str
    values: dict[str, Any]
    context: dict[str, Any] = field(default_factory=dict)


CPU = {"device": "cpu"}
CASES = [
    Case(
        "json-unknown-key",
        "error",
        "zero_optimization.offload_optimizer.buffer_size",
        zero(2, offload_optimizer={"device": "cpu", "buffer_size": 1}),
    ),
    Case("json-unknown-key", "error", "pipeline.stage", {"pipeline": {"stage": 4}}),
    Case(
        "json-unknown-key",
        "error",
        "activation_checkpointing.partition_activation",
        {"activation_checkpointing": {"partition_activation": True}},
    ),
    Case("json-unknown-key", "error", "aio.blocksize", {"aio": {"blocksize": 1}}),
    Case("json-unknown-key", "error", "tensor_parallel.tp_size", {"tensor_parallel": {"tp_size": 2}}),
    Case("json-unknown-key", "error", "optimizer.params.learning_rate", optimizer("AdamW", learning_rate=1e-4)),
    Case("json-unknown-key", "error", "scheduler.params.warmup_steps", scheduler("WarmupLR", warmup_steps=1)),
    Case("json-dotted-key", "error", "optimizer.params.lr", {"optimizer.params.lr": 1e-4}),
    Case(
        "json-dotted-key",
        "error",
        "zero_optimization.offload_param.device",
        {"zero_optimization": {"offload_param.device": "cpu"}},
    ),
    Case("json-key-removed", "warning", "nebula", {"nebula": {"enabled": False}}),
    Case("json-key-removed", "warning", "zero_optimization.mics_shard_size", zero(3, mics_shard_size=-1)),
    Case("json-key-removed", "error", "sparse_attention", {"sparse_attention": {"mode": "fixed"}}),
    Case(
        "json-key-removed",
        "error",
        "compression_training",
        {"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}},
    ),
    Case(
        "json-key-too-new",
        "error",
        "zero_optimization.parameter_alignment",
        zero(1, parameter_alignment=True),
        {"version": Version("0.19.6")},
    ),
    Case(
        "json-key-too-new",
        "warning",
        "data_types.param_dtype",
        {"data_types": {"param_dtype": "fp32"}},
        {"version": Version("0.18.9")},
    ),
    Case("json-key-deprecated", "warning", "zero_optimization.cpu_offload", zero(2, cpu_offload=True)),
    Case("json-key-deprecated", "warning", "zero_optimization", {"zero_optimization": True}),
    Case("json-key-deprecated", "warning", "bfloat16", {"bfloat16": {"enabled": True}}),
    Case("json-key-conflict", "error", "zero_optimization.cpu_offload", zero(2, cpu_offload=True, offload_optimizer=CPU)),
    Case(
        "json-key-conflict",
        "error",
        "zero_optimization.prefetch_bucket_size",
        zero(3, prefetch_bucket_size=1, stage3_prefetch_bucket_size=1),
    ),
    Case("json-key-unused", "warning", "pipeline.stages", {"pipeline": {"stages": 4}}, {"pipeline_parallel_size": 2}),
    Case("json-type", "error", "gradient_accumulation_steps", {"gradient_accumulation_steps": "8"}),
    Case("json-type", "error", "zero_optimization.reduce_bucket_size", zero(1, reduce_bucket_size="5e8")),
    Case("json-type", "error", "zero_optimization.reduce_bucket_size", zero(1, reduce_bucket_size=True)),
    Case("json-type", "error", "zero_optimization.offload_optimizer", zero(1, offload_optimizer="none")),
    Case("json-type", "error", "tensor_parallel.dtype", {"tensor_parallel": {"dtype": "bf16"}}),
    Case("json-type", "error", "wall_clock_breakdown", {"wall_clock_breakdown": "false"}),
    Case("json-type-coerced", "warning", "zero_optimization.stage", zero("2")),
    Case("json-type-coerced", "warning", "train_micro_batch_size_per_gpu", {"train_micro_batch_size_per_gpu": 1.0}),
    Case(
        "json-range",
        "error",
        "zero_optimization.offload_optimizer.ratio",
        zero(3, offload_optimizer={"device": "cpu", "ratio": 1.5}),
    ),
    Case("json-range", "error", "zero_optimization.reduce_bucket_size", zero(1, reduce_bucket_size=0)),
    Case("json-range", "error", "train_micro_batch_size_per_gpu", {"train_micro_batch_size_per_gpu": -1}),
    Case("json-choice", "error", "zero_optimization.stage", zero(4)),
    Case("json-choice", "error", "zero_optimization.stage", zero(-1)),
    Case("json-choice", "error", "zero_optimization.offload_param.device", zero(3, offload_param={"device": "gpu"})),
    Case("json-choice", "error", "communication_data_type", {"communication_data_type": "int8"}),
    Case("json-choice", "error", "data_types.grad_accum_dtype", {"data_types": {"grad_accum_dtype": "fp8"}}),
    Case("json-auto", "error", "zero_optimization.stage", zero("auto")),
    Case("json-auto", "error", "optimizer.params.lr", optimizer("AdamW", lr="auto")),
    Case(
        "json-batch-missing",
        "error",
        "train_micro_batch_size_per_gpu",
        {"train_micro_batch_size_per_gpu": None, "gradient_accumulation_steps": 2},
    ),
    Case("json-batch-product", "error", "train_batch_size", {"train_batch_size": 12}),
    Case("json-batch-product", "error", "train_batch_size", {"train_batch_size": 8, "gradient_accumulation_steps": 2}),
    Case("json-autotp-batch", "warning", "train_batch_size", {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}}),
    Case("json-autotp-world", "error", "tensor_parallel.autotp_size", {"tensor_parallel": {"autotp_size": 3}}),
    Case(
        "json-autotp-world",
        "error",
        "tensor_parallel.autotp_size",
        {"tensor_parallel": {"autotp_size": 2}},
        {"tensor_parallel_size": 4},
    ),
    Case(
        "json-autotp-world",
        "error",
        "tensor_parallel.autotp_size",
        {"tensor_parallel": {"autotp_size": 2}},
        {"pipeline_parallel_size": 2},
    ),
    Case("json-sequence-parallel", "error", "sequence_parallel_size", {"sequence_parallel_size": 3}),
    Case("json-sequence-parallel", "warning", "sequence_parallel_size", {"sequence_parallel_size": 2}),
    Case("json-precision-both", "error", "bf16.enabled", {"fp16": {"enabled": True}, "bf16": {"enabled": True}}),
    Case("json-precision-none", "info", "bf16.enabled", {}),
    Case(
        "json-autocast", "warning", "torch_autocast.enabled", {"torch_autocast": {"enabled": True}, "bf16": {"enabled": True}}
    ),
    Case("json-loss-scale", "error", "fp16.min_loss_scale", {"fp16": {"enabled": True, "min_loss_scale": 0}}),
    Case(
        "json-param-dtype",
        "error",
        "data_types.param_dtype",
        {"data_types": {"param_dtype": "fp16"}, "bf16": {"enabled": True}},
    ),
    Case(
        "json-master-weights",
        "error",
        "bf16.bf16_optimizer_states",
        {"bf16": {"enabled": True, "bf16_optimizer_states": True}, **zero(1)},
    ),
    Case(
        "json-master-weights",
        "error",
        "fp16.fp16_master_weights_and_grads",
        {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}},
    ),
    Case("json-allreduce-sum", "error", "gradient_allreduce_op", {"gradient_allreduce_op": "sum", **zero(3)}),
    Case("json-gradient-clipping", "info", "gradient_clipping", {}),
    Case("json-stage3-only", "error", "zero_optimization.zero_quantized_weights", zero(2, zero_quantized_weights=True)),
    Case("json-stage3-only", "info", "zero_optimization.stage3_max_live_parameters", zero(2, stage3_max_live_parameters=1)),
    Case("json-zero-single-rank", "warning", "zero_optimization.stage", zero(1), {"pipeline_parallel_size": 8}),
    Case(
        "json-nvme-path",
        "error",
        "zero_optimization.offload_optimizer.nvme_path",
        zero(3, offload_optimizer={"device": "nvme"}),
    ),
    Case(
        "json-offload-keys",
        "info",
        "zero_optimization.offload_param.buffer_size",
        zero(3, offload_param={"device": "cpu", "buffer_size": 1}),
    ),
    Case(
        "json-offload-ratio",
        "error",
        "zero_optimization.offload_optimizer.ratio",
        zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
    ),
    Case(
        "json-super-offload",
        "error",
        "zero_optimization.offload_optimizer.super_offload",
        zero(2, offload_optimizer={"device": "cpu", "super_offload": True}),
    ),
    Case(
        "json-quantized-gradients",
        "error",
        "zero_optimization.zero_quantized_gradients",
        zero(3, zero_quantized_gradients=True, reduce_scatter=False),
    ),
    Case("json-hpz-world", "error", "zero_optimization.zero_hpz_partition_size", zero(3, zero_hpz_partition_size=3)),
    Case(
        "json-hpz-host",
        "warning",
        "zero_optimization.zero_hpz_partition_size",
        zero(3, zero_hpz_partition_size=4),
        {"num_devices": 16},
    ),
    Case(
        "json-hpz-small-parameter",
        "warning",
        "zero_optimization.zero_hpz_partition_size",
        zero(3, zero_hpz_partition_size=8),
        {"smallest_parameters": {"bias": 4}},
    ),
    Case("json-compute-grad-norm", "error", "zero_optimization.compute_grad_norm", zero(2, compute_grad_norm=False)),
    Case("json-elastic-checkpoint", "error", "zero_optimization.elastic_checkpoint", zero(3, elastic_checkpoint=True)),
    Case("json-legacy-stage1", "error", "zero_optimization.legacy_stage1", zero(1, legacy_stage1=True)),
    Case("json-zenflow", "error", "zero_optimization.zenflow", zero(2, zenflow={"topk_ratio": 0.1})),
    Case("json-sub-group-size", "error", "zero_optimization.sub_group_size", zero(3, sub_group_size=0)),
    Case("json-gather-on-save", "info", "zero_optimization.stage3_gather_16bit_weights_on_model_save", zero(3)),
    Case("json-optimizer-type", "error", "optimizer.type", optimizer("AdamX")),
    Case("json-one-bit", "error", "optimizer.type", optimizer("OneBitAdam")),
    Case("json-one-bit", "error", "optimizer.type", {**optimizer("OneBitAdam"), **zero(1)}, {"version": Version("0.19.7")}),
    Case("json-optimizer-untested", "error", "optimizer.type", {**optimizer("Lamb"), **zero(1)}),
    Case("json-offload-optimizer", "warning", "zero_optimization.offload_optimizer.device", zero(1, offload_optimizer=CPU)),
    Case(
        "json-offload-optimizer",
        "error",
        "zero_optimization.offload_optimizer.device",
        zero(1, offload_optimizer=CPU),
        {"client_optimizer": "AdamW"},
    ),
    Case("json-betas", "error", "optimizer.params.betas", optimizer("Adam", betas=[0.9])),
    Case("json-max-grad-norm", "error", "optimizer.params.max_grad_norm", optimizer("Adam", max_grad_norm=1.0)),
    Case(
        "json-lamb-loss-scale", "error", "fp16.loss_scale", {**optimizer("Lamb"), "fp16": {"enabled": True, "loss_scale": 128}}
    ),
    Case("json-scheduler-type", "error", "scheduler.type", scheduler("WarmupLinear")),
    Case("json-scheduler-steps", "error", "scheduler.params.total_num_steps", scheduler("WarmupCosineLR", warmup_num_steps=1)),
    Case(
        "json-scheduler-steps",
        "warning",
        "scheduler.params.total_num_steps",
        scheduler("WarmupDecayLR", warmup_num_steps=100, total_num_steps=10),
    ),
    Case(
        "json-offload-optimizer",
        "warning",
        "zero_optimization.offload_optimizer.device",
        zero(1, offload_optimizer=CPU),
        {"hf_arguments": {**HF, "optim": "adamw_torch"}},
    ),
    Case("json-optimizer-untested", "error", "zero_allow_untested_optimizer", zero(1), {"client_optimizer": "SGD"}),
    Case(
        "json-managed-accumulation",
        "error",
        "managed_gradient_accumulation",
        {"managed_gradient_accumulation": False},
        {"pipeline_parallel_size": 2},
    ),
    Case("json-monitor", "warning", "wandb.enabled", {"wandb": {"enabled": True}}),
    Case("json-monitor", "warning", "tensorboard.enabled", {"tensorboard": {"enabled": True}}),
    Case("json-monitor", "warning", "csv_monitor.enabled", {"csv_monitor": {"enabled": True}}),
    Case("json-aio", "info", "aio", {"aio": {"queue_depth": 16}}),
    Case("json-aio-gds", "error", "aio.use_gds", {"aio": {"use_gds": True}}, {"accelerator": Accelerator.cpu}),
    Case("json-pipeline", "info", "pipeline", {"pipeline": {"pipe_partitioned": True}}),
    Case("json-activation-checkpointing", "info", "activation_checkpointing", {"activation_checkpointing": {"profile": True}}),
    Case(
        "json-activation-checkpointing",
        "error",
        "activation_checkpointing.contiguous_memory_optimization",
        {"activation_checkpointing": {"contiguous_memory_optimization": True}},
    ),
    Case("json-autotuning", "warning", "autotuning.enabled", {"autotuning": {"enabled": True}}),
    Case("json-autotuning-path", "error", "autotuning.exps_dir", {"autotuning": {"exps_dir": ""}}),
    Case(
        "json-data-efficiency",
        "error",
        "data_efficiency.data_sampling.curriculum_learning",
        {"data_efficiency": {"data_sampling": {"curriculum_learning": {"enabled": True}}}},
    ),
    Case(
        "json-expert-parallel", "error", "expert_parallel.load_balance_coeff", {"expert_parallel": {"load_balance_coeff": 0.1}}
    ),
]
OF_OTHER_TESTS = {
    rule.name
    for module in (read, auto, ingest)
    for rule in vars(module).values()
    if type(rule).__name__ == "LintRule" and rule.name != "json-auto"
}
"""Rules that need a file or the Trainer's arguments; ``test_read``, ``test_auto`` and ``test_ingest`` have them."""
OF_THE_COMMAND = {"json-words", "json-version", "json-devices", "json-no-estimate", "json-host-copies"}


def findings(values: dict[str, Any], **context: Any):
    stated = {"version": Version("0.19.8"), "num_devices": 8, "devices_per_host": 8, **context}
    return lint({"train_micro_batch_size_per_gpu": 1, **values}, LintContext(**stated))


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}-{number}" for number, case in enumerate(CASES)])
def test_the_rule_names_the_key_and_its_gravity(case):
    found = {(finding.rule, finding.severity.value, finding.field) for finding in findings(case.values, **case.context)}
    assert (case.rule, case.severity, case.key) in found


def test_every_rule_has_a_case():
    assert LINT_RULES.keys() - OF_THE_COMMAND == {case.rule for case in CASES} | OF_OTHER_TESTS


def test_rules_are_named_and_described_for_people():
    for name, rule in LINT_RULES.items():
        assert name == rule.name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert rule.description and not rule.description.endswith(".")
        assert isinstance(rule.severity, Severity)


@pytest.mark.parametrize("base", BASES)
def test_usual_files_are_in_order(base):
    """Every base the second opinion starts from, on devices its batch divides over."""
    wrong = [
        finding
        for finding in lint(base, LintContext(version=Version("0.19.8"), num_devices=8, devices_per_host=8))
        if finding.severity is Severity.error
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("zero_optimisation", "zero_optimization"),
        ("train_micro_batch_size_per_gpus", "train_micro_batch_size_per_gpu"),
        ("micro_batch_size", "train_micro_batch_size_per_gpu"),
        ("reduce_bucket_size", "zero_optimization.reduce_bucket_size"),
        ("Gradient_Clipping", "gradient_clipping"),
        ("_comment", None),
    ],
)
def test_the_nearest_key_is_named_with_its_path(key, near):
    (finding,) = [finding for finding in findings({key: 1}) if finding.rule == "json-unknown-key"]
    assert finding.fix == (f"did you mean {near}?" if near else "delete it; comments start with #")


@pytest.mark.parametrize(
    ("version", "clips", "pins"), [("0.16.9", 0.0, False), ("0.18.2", 0.0, False), ("0.19.6", 1.0, True), ("0.19.8", 1.0, True)]
)
def test_defaults_are_those_of_the_release(version, clips, pins):
    from orchestrator.deepspeed_config.lint import effective_values

    context = LintContext(version=Version(version), num_devices=8, devices_per_host=8)
    effective = effective_values(zero(2, offload_optimizer=CPU), context)
    assert effective.value("gradient_clipping") == clips
    assert effective.value("zero_optimization.offload_optimizer.pin_memory") is pins


@pytest.mark.parametrize("version", ["0.16.9", "0.18.2", "0.19.6"])
def test_keys_removed_later_are_no_concern_of_an_older_release(version):
    old = {"amp": {"enabled": True}, "elasticity": {"enabled": True}, **zero(3, mics_shard_size=8)}
    assert not [finding for finding in findings(old, version=Version(version)) if finding.severity is Severity.error]
