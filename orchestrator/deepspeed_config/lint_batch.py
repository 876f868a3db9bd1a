"""Batch sizes: train = micro x accumulation x data-parallel size, and whom DeepSpeed counts as data-parallel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.keys.table import BATCH_KEYS
from orchestrator.deepspeed_config.lint_rules import LintContext, check, lint_rule
from orchestrator.findings import Finding, Severity

MISSING = lint_rule("json-batch-missing", "a batch size is given", Severity.error)
PRODUCT = lint_rule("json-batch-product", "the batch sizes multiply up over the data-parallel ranks", Severity.error)
AUTOTP = lint_rule("json-autotp-batch", "train_batch_size counts tensor-parallel ranks once", Severity.warning)
AUTOTP_WORLD = lint_rule("json-autotp-world", "autotp_size divides the devices and agrees with the layout", Severity.error)
SEQUENCE = lint_rule("json-sequence-parallel", "sequence_parallel_size divides the devices", Severity.error)

_TRAIN, _MICRO, _ACCUMULATION = BATCH_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch sizes of a run whose numbers agree, in sequences."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int


def autotp_size(effective: Effective) -> int:
    """Tensor-parallel size that the JSON asks for itself; 1 without."""
    return max(1, int(effective.value("tensor_parallel.autotp_size")))


def sequence_parallel_size(effective: Effective) -> int:
    """Ulysses sequence-parallel size; 1 without."""
    return int(effective.value("sequence_parallel_size") or 1)


def model_ranks(effective: Effective, context: LintContext) -> int:
    """Ranks that work on one micro-batch together."""
    tensor = max(autotp_size(effective), context.tensor_parallel_size)
    return tensor * context.pipeline_parallel_size * sequence_parallel_size(effective)


def data_parallel_size(effective: Effective, context: LintContext) -> int:
    """Replicas of the model in the planned run, at least 1."""
    return max(1, context.num_devices // model_ranks(effective, context))


def batch_of(effective: Effective, context: LintContext) -> Batch | None:
    """The batch sizes, what is missing derived as DeepSpeed derives it; ``None`` when they do not agree."""
    replicas = data_parallel_size(effective, context)
    train, micro, accumulation = (effective.value(name) for name in BATCH_KEYS)
    if train is None and micro is None:
        return None
    if _is_autotp_count(effective, context):
        train = None
    if train is None:
        accumulation = accumulation or 1
        train = micro * accumulation * replicas
    elif micro is None:
        accumulation = accumulation or 1
        micro = train // (accumulation * replicas)
    elif accumulation is None:
        accumulation = train // (micro * replicas)
    if train != micro * accumulation * replicas or min(micro, accumulation) < 1:
        return None
    return Batch(train_batch_size=train, train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=accumulation)


@check
def batch_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Whether a batch can be made of the numbers. Those of the wrong kind are reported as such, and here taken as missing."""
    unreadable = any(effective.given(name) and effective.value(name) is None for name in BATCH_KEYS)
    if unreadable or any(effective.raw(name) == "auto" for name in BATCH_KEYS):
        return
    if not effective.given(_TRAIN) and not effective.given(_MICRO):
        yield MISSING(_MICRO, f"neither {_TRAIN} nor {_MICRO} is given", f"set {_MICRO}")
    elif batch_of(effective, context) is None:
        yield _product(effective, context)


@check
def autotp_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """AutoTP that only the JSON asks for: DeepSpeed counts every rank as data-parallel then (DeepSpeed#7298)."""
    tensor = autotp_size(effective)
    if effective.value("tensor_parallel.autotp_size") < 0:
        yield AUTOTP_WORLD("tensor_parallel.autotp_size", "it is below 0", "write 0 for none")
    if tensor == 1:
        return
    asked = context.tensor_parallel_size
    if asked not in (1, tensor):
        message = f"{tensor} is not parallelism.tensor_parallel_size={asked}"
        yield AUTOTP_WORLD("tensor_parallel.autotp_size", message, f"set it to {asked}, or leave the word out")
    if context.num_devices % tensor:
        message = f"{tensor} does not divide the {context.num_devices} devices"
        yield AUTOTP_WORLD("tensor_parallel.autotp_size", message, "set a divisor of the devices")
    if context.pipeline_parallel_size > 1:
        message = "AutoTP does not work on the layer list of a pipeline"
        yield AUTOTP_WORLD("tensor_parallel.autotp_size", message, "use the pipeline's topology instead")
    batch = batch_of(effective, context)
    if effective.given(_TRAIN) and batch is not None:
        counted = batch.train_micro_batch_size_per_gpu * batch.gradient_accumulation_steps * context.num_devices
        message = (
            f"{batch.train_batch_size} sequences are read in a step, but with autotp_size in the configuration alone "
            f"DeepSpeed counts all {context.num_devices} ranks and takes {counted} only"
        )
        yield AUTOTP(_TRAIN, message, f"leave {_TRAIN} out (compile does), or hand deepspeed.initialize an mpu")


@check
def sequence_parallel_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Ulysses divides the devices."""
    size = sequence_parallel_size(effective)
    if context.num_devices % size:
        message = f"{size} does not divide the {context.num_devices} devices"
        yield SEQUENCE("sequence_parallel_size", message, "set a divisor of the devices")
    elif size > 1:
        message = "DeepSpeed reads it from a mapping only: handed a path, it counts every device as data-parallel"
        yield SEQUENCE("sequence_parallel_size", message, "load the file and hand over what it holds", Severity.warning)


def _is_autotp_count(effective: Effective, context: LintContext) -> bool:
    """Whether ``train_batch_size`` is what DeepSpeed wants with AutoTP in the JSON: a product with every rank."""
    train, micro, accumulation = (effective.value(name) for name in BATCH_KEYS)
    if autotp_size(effective) == 1 or None in (train, micro):
        return False
    return bool(train == micro * (accumulation or 1) * context.num_devices)


def _product(effective: Effective, context: LintContext) -> Finding:
    train, micro, accumulation = (effective.value(name) for name in BATCH_KEYS)
    replicas = data_parallel_size(effective, context)
    counted = f"data-parallel size {replicas}"
    if context.num_devices != replicas:
        counted += f" ({context.num_devices} devices / {model_ranks(effective, context)})"
    if micro is not None and accumulation is not None:
        product = micro * accumulation * replicas
        message = f"{train} is not micro-batch {micro} x accumulation {accumulation} x {counted} = {product}"
        fixes = [f"set {_TRAIN} to {product}, or leave it out"]
        if train % (micro * replicas) == 0:
            fixes.append(f"set {_ACCUMULATION} to {train // (micro * replicas)}")
        if train % (micro * accumulation) == 0:
            wanted = train // (micro * accumulation) * model_ranks(effective, context)
            fixes.append(f"use {wanted} device{'s' if wanted > 1 else ''}")
        return PRODUCT(_TRAIN, message, ", or ".join(fixes))
    name, size = ("micro-batch", micro) if micro is not None else ("accumulation", accumulation or 1)
    unit = size * replicas
    nearest = max(unit, round(train / unit) * unit)
    return PRODUCT(_TRAIN, f"{train} is no multiple of {name} {size} x {counted} = {unit}", f"set {_TRAIN} to {nearest}")
