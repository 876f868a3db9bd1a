"""Number formats, the loss scale and gradient reduction."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.lint_rules import LintContext, check, lint_rule
from orchestrator.findings import Finding, Severity

BOTH = lint_rule("json-precision-both", "fp16 and bf16 are not both on", Severity.error)
NONE = lint_rule("json-precision-none", "a 16-bit format is on", Severity.info)
AUTOCAST = lint_rule("json-autocast", "torch_autocast is used alone", Severity.error)
LOSS_SCALE = lint_rule("json-loss-scale", "the dynamic loss scale has a floor and a window above zero", Severity.error)
PARAM_DTYPE = lint_rule("json-param-dtype", "data_types.param_dtype agrees with fp16 and bf16", Severity.error)
MASTER_WEIGHTS = lint_rule(
    "json-master-weights", "16-bit master weights have the ZeRO stage and offload they need", Severity.error
)
ALLREDUCE_SUM = lint_rule("json-allreduce-sum", "summed gradients go with ZeRO below stage 3", Severity.error)
OWN_STEPS = lint_rule("json-managed-accumulation", "a client that owns accumulation has an engine that lets it", Severity.error)
CLIPPING = lint_rule("json-gradient-clipping", "gradient clipping is written out", Severity.info)


@check
def precision_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Which format trains."""
    del context
    fp16, bf16 = effective.value("fp16.enabled"), effective.value("bf16.enabled")
    autocast = effective.value("torch_autocast.enabled")
    if fp16 and bf16:
        yield BOTH("bf16.enabled", "fp16.enabled and bf16.enabled are both true, and DeepSpeed takes one", "switch one off")
    elif autocast and (fp16 or bf16):
        block = "fp16" if fp16 else "bf16"
        message = f"it casts a model that {block} has cast already; DeepSpeed means one or the other"
        yield AUTOCAST("torch_autocast.enabled", message, f"switch off torch_autocast or {block}", Severity.warning)
    elif not (fp16 or bf16 or autocast):
        yield NONE("bf16.enabled", "no 16-bit format is on: the run computes in fp32", "nothing, or switch on bf16")
    if autocast and effective.value("torch_autocast.dtype") == "int8":
        yield AUTOCAST("torch_autocast.dtype", "torch does not train in int8", "write bf16")


@check
def loss_scale_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """DeepSpeed checks the two only while the loss scale is dynamic."""
    del context
    if not effective.value("fp16.enabled") or effective.value("fp16.loss_scale") != 0:
        return
    for name in ("loss_scale_window", "min_loss_scale"):
        if (size := effective.value(f"fp16.{name}")) <= 0:
            message = f"{size} is no floor or window of a dynamic loss scale; DeepSpeed refuses it"
            yield LOSS_SCALE(f"fp16.{name}", message, "write a whole number of at least 1")


@check
def param_dtype_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """The engine asserts it when it starts."""
    del context
    asked, model = effective.value("data_types.param_dtype"), effective.model_dtype
    if asked is not None and asked != model:
        message = f"{asked} contradicts fp16 and bf16, by which the model is {model}"
        yield PARAM_DTYPE("data_types.param_dtype", message, f"write {model}, or leave it out")


@check
def master_weight_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Parameters, gradients and optimizer states all in 16 bits."""
    del context
    stage, offloaded = effective.zero_stage, effective.offload_device("offload_optimizer") != "none"
    fp16_master = "fp16.fp16_master_weights_and_grads"
    bf16_master = "bf16.bf16_master_weights_and_grads"
    states = "bf16.bf16_optimizer_states"
    for field in (fp16_master, bf16_master, states):
        if effective.value(field) and stage == 0:
            yield MASTER_WEIGHTS(field, "it needs ZeRO stage 1, 2 or 3, and the stage is 0", "set zero_optimization.stage to 1")
    if effective.value(states) and not effective.value(bf16_master):
        yield MASTER_WEIGHTS(states, f"it needs {bf16_master}", f"set {bf16_master} to true")
    if stage > 0 and not offloaded:
        if effective.value(fp16_master):
            yield MASTER_WEIGHTS(fp16_master, "it needs DeepSpeedCPUAdam", "offload the optimizer to cpu")
        if effective.value(bf16_master) and not effective.value(states):
            message = "on the device it needs bf16_optimizer_states"
            yield MASTER_WEIGHTS(bf16_master, message, f"set {states} to true, or offload the optimizer to cpu")


@check
def reduction_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """How gradients are reduced and clipped."""
    if effective.value("gradient_allreduce_op") == "sum":
        against = [
            ("ZeRO stage 3", effective.zero_stage == 3),
            ("ZenFlow", bool(effective.given("zero_optimization.zenflow"))),
            ("DeepCompile", effective.value("compile.deepcompile")),
        ]
        for name, used in against:
            if used:
                yield ALLREDUCE_SUM("gradient_allreduce_op", f"sum does not work with {name}", "write mean")
    if not effective.value("managed_gradient_accumulation"):
        overlaps = effective.value("zero_optimization.overlap_comm") and effective.zero_stage < 2
        against = [
            ("a pipeline", context.pipeline_parallel_size > 1),
            ("DeepCompile", effective.value("compile.deepcompile")),
            ("overlap_comm below stage 2", overlaps),
        ]
        for name, used in against:
            if used:
                yield OWN_STEPS("managed_gradient_accumulation", f"false does not work with {name}", "delete it")
    if not effective.given("gradient_clipping"):
        default = effective.value("gradient_clipping")
        message = f"it is not given, and DeepSpeed {context.version} clips at {default} then"
        if not default:
            message = f"it is not given, and DeepSpeed {context.version} does not clip then; 0.19.6 and newer clip at 1.0"
        yield CLIPPING("gradient_clipping", message, f"write {default}, or 0 for no clipping; compile writes {default}")
