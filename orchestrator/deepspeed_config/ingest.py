"""A DeepSpeed JSON as a ``RunConfig``, so that the planner's layout, rules and memory speak of the run it would start.

Where the JSON is silent DeepSpeed's own defaults count, not ours. What a JSON cannot say (model, devices, pipeline stages,
recomputation, sequence length) stays as the words of the command line have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from orchestrator.config.enums import (
    DataSource,
    LrSchedule,
    OffloadDevice,
    OptimizerType,
    Precision,
    RecomputePolicy,
)
from orchestrator.config.schema import (
    ActivationCheckpointingConfig,
    CommunicationConfig,
    LrSchedulerConfig,
    OffloadConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    ZeroConfig,
)
from orchestrator.config.training import TrainingConfig
from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.lint_batch import Batch, autotp_size
from orchestrator.deepspeed_config.lint_rules import lint_rule
from orchestrator.findings import Finding, Severity

ASSUMPTION = lint_rule("json-assumption", "what the plan assumes, because a JSON cannot say it", Severity.info)

_ZERO, _OPTIMIZER, _PARAM = "zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"
_SHARED_NAMES = {
    _ZERO: ("zero", [field.name for field in fields(ZeroConfig)]),
    "": (
        "training",
        ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"],
    ),
    "optimizer.params": ("optimizer", ["lr", "betas", "eps", "weight_decay", "momentum", "adam_lr"]),
    "fp16": (
        "precision",
        ["loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"],
    ),
}
JSON_PATHS: Mapping[str, str] = {
    **{
        f"{section}.{name}": f"{block}.{name}".lstrip(".")
        for block, (section, names) in _SHARED_NAMES.items()
        for name in names
    },
    "communication.communication_data_type": "communication_data_type",
    "communication.prescale_gradients": "prescale_gradients",
    "communication.gradient_predivide_factor": "gradient_predivide_factor",
    "optimizer.type": "optimizer.type",
    "offload.optimizer_device": f"{_OPTIMIZER}.device",
    "offload.optimizer_ratio": f"{_OPTIMIZER}.ratio",
    "offload.optimizer_buffer_count": f"{_OPTIMIZER}.buffer_count",
    "offload.pin_memory": f"{_OPTIMIZER}.pin_memory",
    "offload.nvme_path": f"{_OPTIMIZER}.nvme_path",
    "offload.param_device": f"{_PARAM}.device",
    "offload.param_buffer_count": f"{_PARAM}.buffer_count",
    "offload.param_buffer_size": f"{_PARAM}.buffer_size",
    "offload.param_max_in_cpu": f"{_PARAM}.max_in_cpu",
    "precision.grad_accum_dtype": "data_types.grad_accum_dtype",
}
"""Where each of our options stands in a DeepSpeed JSON."""
OWNED_SECTIONS = ("zero", "offload", "precision", "optimizer", "lr_scheduler", "communication", "training")
"""Sections of a ``RunConfig`` that the JSON states; words about them would contradict it."""

_OPTIMIZERS = {kind.value.lower(): kind for kind in OptimizerType}
_MOMENTUM = {OptimizerType.SGD: 0.0, OptimizerType.Muon: 0.95}
"""Momentum of the optimizers that have one, where the file gives none."""
_SECTION_WORD = re.compile(r"\b(?:zero|offload|precision|optimizer|communication|training)\.[a-z0-9_]+")
_DTYPE_WORD = re.compile(r"\bprecision\.dtype=(\w+)")
_KEEPS_INPUTS = (RecomputePolicy.full, RecomputePolicy.every_k_layers)


def ingest(config: RunConfig, effective: Effective, batch: Batch | None) -> RunConfig:
    """``config`` with every value that ``effective`` states; ``batch`` are its batch sizes, where they agree."""
    micro = 1 if batch is None else batch.train_micro_batch_size_per_gpu
    accumulation = 1 if batch is None else batch.gradient_accumulation_steps
    tensor = max(autotp_size(effective), config.parallelism.tensor_parallel_size)
    return replace(
        config,
        parallelism=replace(config.parallelism, tensor_parallel_size=tensor),
        zero=ZeroConfig(**{field.name: effective.value(f"{_ZERO}.{field.name}") for field in fields(ZeroConfig)}),
        offload=_offload(effective),
        precision=_precision(effective),
        optimizer=_optimizer(effective),
        lr_scheduler=LrSchedulerConfig(type=LrSchedule.constant),
        communication=_communication(effective),
        training=TrainingConfig(
            train_micro_batch_size_per_gpu=micro,
            gradient_accumulation_steps=accumulation,
            gradient_clipping=effective.value("gradient_clipping"),
        ),
        activation_checkpointing=_recompute(config.activation_checkpointing, effective),
        data=replace(config.data, source=DataSource.synthetic, path=None, ignore_fraction=0.0),
    )


def assumptions(config: RunConfig, effective: Effective) -> list[Finding]:
    """What the plan of an ingested ``config`` takes for granted."""
    recompute = config.activation_checkpointing.policy
    notes = [
        (
            "activation_checkpointing",
            f"whether your model recomputes activations is not in the file: {recompute.value} is assumed",
            "say activation_checkpointing=full if it does",
        ),
        (
            "data.sequence_length",
            f"the length of a sequence is not in the file: {config.data.sequence_length} tokens are assumed",
            "say data.sequence_length=N",
        ),
    ]
    kind = effective.raw("optimizer.type")
    if isinstance(kind, str) and kind.lower() not in _OPTIMIZERS:
        notes.append(("optimizer.type", f"memory of {kind} is estimated as that of AdamW: two fp32 moments", "nothing"))
    if kind is None:
        notes.append(("optimizer.type", "the file names no optimizer: AdamW is assumed for the memory", "nothing"))
    for field in ("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"):
        if effective.value(field):
            notes.append((field, "memory is estimated with fp32 master weights, which is more than it needs", "nothing"))
    return [ASSUMPTION(*note) for note in notes]


def in_json_terms(findings: Iterable[Finding], effective: Effective) -> list[Finding]:
    """The planner's findings with the JSON's own keys for our options, in field, message and fix."""
    return [
        replace(
            finding,
            field=json_words(finding.field, effective),
            message=json_words(finding.message, effective),
            fix=json_words(finding.fix, effective),
        )
        for finding in findings
    ]


def json_words(text: str, effective: Effective) -> str:
    """``text`` with the JSON's keys for our options: ``zero.stage=1`` becomes ``zero_optimization.stage=1``."""

    def dtype(match: re.Match[str]) -> str:
        return "fp16.enabled=false and bf16.enabled=false" if match[1] == "fp32" else f"{match[1]}.enabled=true"

    def key(match: re.Match[str]) -> str:
        if match[0] == "precision.dtype":
            return "fp16.enabled" if effective.model_dtype == "fp16" else "bf16.enabled"
        return JSON_PATHS.get(match[0], match[0])

    if autotp_size(effective) > 1:
        text = text.replace("parallelism.tensor_parallel_size", "tensor_parallel.autotp_size")
    return _SECTION_WORD.sub(key, _DTYPE_WORD.sub(dtype, text))


def _offload(effective: Effective) -> OffloadConfig:
    optimizer = OffloadDevice[effective.offload_device("offload_optimizer")]
    param = OffloadDevice[effective.offload_device("offload_param")]
    used = [block for block, device in ((_OPTIMIZER, optimizer), (_PARAM, param)) if device is not OffloadDevice.none]
    paths = [effective.value(f"{block}.nvme_path") for block in used]
    on_disk: dict[str, Any] = {}
    if optimizer is OffloadDevice.nvme:
        on_disk["optimizer_buffer_count"] = effective.value(f"{_OPTIMIZER}.buffer_count")
    if param is OffloadDevice.nvme:
        on_disk |= {f"param_{name}": effective.value(f"{_PARAM}.{name}") for name in ("buffer_count", "buffer_size")}
        on_disk["param_max_in_cpu"] = effective.value(f"{_PARAM}.max_in_cpu")
    return OffloadConfig(
        optimizer_device=optimizer,
        param_device=param,
        optimizer_ratio=effective.value(f"{_OPTIMIZER}.ratio") if optimizer is not OffloadDevice.none else 1.0,
        nvme_path=next((path for path in paths if path), None) if OffloadDevice.nvme in (optimizer, param) else None,
        pin_memory=any(effective.value(f"{block}.pin_memory") for block in used) if used else True,
        **on_disk,
    )


def _precision(effective: Effective) -> PrecisionConfig:
    dtype = Precision[effective.model_dtype]
    asked = effective.value("data_types.grad_accum_dtype")
    # DeepSpeed accumulates in the model's format unless told otherwise; we would in fp32
    settings = PrecisionConfig(dtype=dtype, grad_accum_dtype=Precision[asked] if asked else dtype)
    if dtype is Precision.fp16:
        names = _SHARED_NAMES["fp16"][1]
        settings = replace(settings, **{name: effective.value(f"fp16.{name}") for name in names})
    return settings


def _optimizer(effective: Effective) -> OptimizerConfig:
    """The optimizer if it is one of ours, and its numbers that are sound; the lint says what is wrong with the others."""
    params, named = effective.block("optimizer.params"), effective.raw("optimizer.type")
    kind = _OPTIMIZERS.get(named.lower() if isinstance(named, str) else "", OptimizerType.AdamW)
    momentum = params.get("momentum", _MOMENTUM.get(kind, 0.0))
    sound = isinstance(momentum, (int, float)) and 0 <= momentum < 1
    numbers = {
        name: params[name]
        for name in ("lr", "eps", "weight_decay")
        if isinstance(params.get(name), (int, float)) and not isinstance(params[name], bool) and params[name] > 0
    }
    return replace(OptimizerConfig(), type=kind, momentum=momentum if sound else _MOMENTUM.get(kind, 0.0), **numbers)


def _communication(effective: Effective) -> CommunicationConfig:
    asked = effective.value("communication_data_type")
    return CommunicationConfig(
        communication_data_type=Precision[asked] if asked else None,
        prescale_gradients=effective.value("prescale_gradients"),
        gradient_predivide_factor=effective.value("gradient_predivide_factor"),
    )


def _recompute(words: ActivationCheckpointingConfig, effective: Effective) -> ActivationCheckpointingConfig:
    if words.policy not in _KEEPS_INPUTS:
        return words
    return replace(
        words,
        partition_activations=effective.value("activation_checkpointing.partition_activations"),
        cpu_checkpointing=effective.value("activation_checkpointing.cpu_checkpointing"),
    )
