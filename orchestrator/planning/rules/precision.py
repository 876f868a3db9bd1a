"""Rules about number formats and the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import Accelerator, AttentionImplementation, Precision
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

HIGHEST_SCALE_POWER = 20
"""A higher initial loss scale only costs skipped steps: each halves it once."""


@rule("device-precision", "the device computes in the format", Severity.error, Fact.cluster)
def device_precision(context: RuleContext) -> Iterator[Finding]:
    """Emulation is slow where it exists; DeepSpeed refuses fp16 on a CPU."""
    dtype, known = context.config.precision.dtype, context.cluster.precisions
    if dtype not in known:
        listed = ", ".join(precision.value for precision in Precision if precision in known) or "none is listed"
        best = next((precision for precision in (Precision.bf16, Precision.fp16, Precision.fp32) if precision in known), None)
        yield error(
            "device-precision",
            "precision.dtype",
            f"{context.cluster.device_name} does not compute in {dtype.value} (it does in: {listed})",
            f"set precision.dtype={best.value}" if best else "list what the device can do in cluster.precisions",
        )


@rule("attention-kernel", "the attention kernel runs on the device and in the format", Severity.error, Fact.cluster)
def attention_kernel(context: RuleContext) -> Iterator[Finding]:
    """FlashAttention 2 is written for CUDA and for 16-bit numbers; elsewhere it fails in the first forward pass."""
    kernel, dtype = context.config.model.attention_implementation, context.config.precision.dtype
    if kernel is not AttentionImplementation.flash_attention_2:
        return
    field, fix = "model.attention_implementation", "set model.attention_implementation=sdpa"
    if context.cluster.accelerator is not Accelerator.cuda:
        message = f"{kernel} needs a CUDA device, {context.cluster.device_name} is none"
        yield error("attention-kernel", field, message, fix)
    if dtype not in (Precision.bf16, Precision.fp16):
        message = f"{kernel} computes in bf16 and fp16 only, precision.dtype is {dtype}"
        yield error("attention-kernel", field, message, f"{fix}, or precision.dtype=bf16")


@rule("stage0-accumulation", "ZeRO stage 0 accumulates gradients in the model's format", Severity.error, concerns_memory=True)
def stage0_accumulation(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed has no optimizer for the mix."""
    precision = context.config.precision
    asked = precision.grad_accum_dtype
    if context.config.zero.stage == 0 and asked is not None and asked is not precision.dtype:
        yield error(
            "stage0-accumulation",
            "precision.grad_accum_dtype",
            f"{precision.dtype.value} gradients cannot be accumulated in {asked.value} at ZeRO stage 0",
            f"set zero.stage=1, or precision.grad_accum_dtype={precision.dtype.value}",
        )


@rule("fp16-stage", "fp16 trains from ZeRO stage 1 up", Severity.error)
def fp16_stage(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed 0.19 does not scale the loss at stage 0, and divides the gradients by the scale all the same."""
    if context.config.precision.dtype is Precision.fp16 and context.config.zero.stage == 0:
        yield error(
            "fp16-stage",
            "zero.stage",
            "at stage 0 DeepSpeed does not scale the loss of fp16 but unscales its gradients: they come out too small, unsaid",
            "set zero.stage=1, which keeps the same state at one replica",
        )


@rule("accumulation-precision", "gradients are accumulated in a format as good as the model's", Severity.warning)
def accumulation_precision(context: RuleContext) -> Iterator[Finding]:
    """A format with less range or fewer digits loses what the backward pass computed."""
    precision = context.config.precision
    asked = precision.grad_accum_dtype
    if context.config.zero.stage > 0 and asked not in (None, precision.dtype, Precision.fp32):
        yield warning(
            "accumulation-precision",
            "precision.grad_accum_dtype",
            f"{precision.dtype.value} gradients are accumulated in {asked}, which cannot hold them",
            "set precision.grad_accum_dtype=fp32",
        )


@rule("pipeline-bf16-accumulation", "bf16 in a pipeline accumulates in fp32", Severity.warning)
def pipeline_bf16_accumulation(context: RuleContext) -> Iterator[Finding]:
    """A pipeline sums many micro-batches, and at ZeRO stage 0 in bf16's eight bits."""
    config = context.config
    if config.parallelism.pipeline_parallel_size > 1 and config.precision.dtype is Precision.bf16 and config.zero.stage == 0:
        yield warning(
            "pipeline-bf16-accumulation",
            "zero.stage",
            "ZeRO stage 0 sums the pipeline's micro-batches in bf16, which loses small gradients",
            "set zero.stage=1, which sums them in fp32",
        )


@rule("initial-loss-scale", "dynamic loss scaling does not start too high", Severity.warning)
def initial_loss_scale(context: RuleContext) -> Iterator[Finding]:
    """Every halving on the way down is a skipped step."""
    precision = context.config.precision
    dynamic = precision.dtype is Precision.fp16 and precision.loss_scale == 0
    if dynamic and precision.initial_scale_power > HIGHEST_SCALE_POWER:
        wasted = precision.initial_scale_power - 16
        yield warning(
            "initial-loss-scale",
            "precision.initial_scale_power",
            f"2^{precision.initial_scale_power} overflows: about {wasted} steps are skipped until the loss scale is usable",
            "set precision.initial_scale_power=16",
        )


@rule("loss-scale-format", "only fp16 scales the loss", Severity.info)
def loss_scale_format(context: RuleContext) -> Iterator[Finding]:
    """bf16 and fp32 have the range of fp32."""
    precision = context.config.precision
    if precision.dtype is not Precision.fp16 and precision.loss_scale not in (0, 1):
        yield info(
            "loss-scale-format",
            "precision.loss_scale",
            f"{precision.loss_scale} has no effect: {precision.dtype.value} needs no loss scale",
            "set precision.loss_scale=0",
        )


@rule("loss-scale-floor", "dynamic loss scaling starts above its floor", Severity.error)
def loss_scale_floor(context: RuleContext) -> Iterator[Finding]:
    """Below it DeepSpeed raises the scale on an overflow instead of halving it, and ends the run on the next."""
    precision = context.config.precision
    start = 2.0**precision.initial_scale_power if 0 <= precision.initial_scale_power <= 64 else 1.0
    if precision.dtype is Precision.fp16 and precision.loss_scale == 0 and precision.min_loss_scale > start:
        yield error(
            "loss-scale-floor",
            "precision.min_loss_scale",
            f"{precision.min_loss_scale} is above the scale that training starts with, 2^{precision.initial_scale_power}",
            "set precision.min_loss_scale=1",
        )


@rule("bf16-accumulation", "bf16 gradients of several micro-batches are summed in fp32", Severity.warning, Fact.layout)
def bf16_accumulation(context: RuleContext) -> Iterator[Finding]:
    """bf16 has eight significant bits: a sum loses what is 256 times smaller. At stage 0 DeepSpeed offers nothing else."""
    precision, steps = context.config.precision, context.layout.gradient_accumulation_steps
    asked = precision.grad_accum_dtype is Precision.bf16 and precision.dtype is Precision.bf16
    if asked and steps > 1 and context.config.zero.stage > 0:
        yield warning(
            "bf16-accumulation",
            "precision.grad_accum_dtype",
            f"the gradients of {steps} micro-batches are summed in bf16, which loses small ones",
            "set precision.grad_accum_dtype=fp32",
        )


@rule("fp16-range", "weights that were trained in bf16 are not trained on in fp16", Severity.warning, Fact.model, Fact.cluster)
def fp16_range(context: RuleContext) -> Iterator[Finding]:
    """Activations that bf16 holds overflow in fp16: the loss scale falls to its floor and the run ends."""
    if context.config.precision.dtype is not Precision.fp16 or not context.config.model.pretrained:
        return
    entries = context.model.hf_config
    trained = str(entries.get("dtype") or entries.get("torch_dtype") or "")
    if trained.removeprefix("torch.") in ("bfloat16", "bf16"):
        best = "bf16" if Precision.bf16 in context.cluster.precisions else "fp32"
        yield warning(
            "fp16-range",
            "precision.dtype",
            f"the weights in {context.config.model.pretrained} were trained in bf16, whose range is wider than fp16's",
            f"set precision.dtype={best}",
        )
