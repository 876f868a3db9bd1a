"""The optimizer and scheduler blocks, which DeepSpeed looks into only when the engine has been built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from orchestrator.deepspeed_config.effective import AUTO, Effective
from orchestrator.deepspeed_config.keys.entry import Block
from orchestrator.deepspeed_config.keys.optimizers import (
    DEEPSPEED_OPTIMIZERS,
    ONE_BIT_OPTIMIZERS,
    ONE_BIT_REMOVED,
    SCHEDULER_NEEDS,
    SCHEDULERS,
    TORCH_OPTIMIZERS,
    TORCH_SCHEDULERS,
    ZERO_OPTIMIZERS,
)
from orchestrator.deepspeed_config.lint_rules import LintContext, check, lint_rule
from orchestrator.deepspeed_config.lint_structure import shown, structure_of
from orchestrator.findings import Finding, Severity

TYPE = lint_rule("json-optimizer-type", "the optimizer is one this DeepSpeed has", Severity.error)
ONE_BIT = lint_rule("json-one-bit", "a 1-bit optimizer has the DeepSpeed and the ZeRO stage it needs", Severity.error)
UNTESTED = lint_rule("json-optimizer-untested", "ZeRO knows the optimizer, or is told to take it", Severity.error)
CLIENT = lint_rule("json-offload-optimizer", "an offloaded optimizer is one that steps on the CPU", Severity.error)
BETAS = lint_rule("json-betas", "betas are two numbers of at least 0 and below 1", Severity.error)
GRAD_NORM = lint_rule("json-max-grad-norm", "gradients are clipped by gradient_clipping", Severity.error)
LAMB = lint_rule("json-lamb-loss-scale", "LAMB has a dynamic loss scale", Severity.error)
SCHEDULER_TYPE = lint_rule("json-scheduler-type", "the scheduler is one there is", Severity.error)
SCHEDULER_STEPS = lint_rule("json-scheduler-steps", "the scheduler knows its steps", Severity.error)

_CPU_CLIENTS = frozenset({"deepspeedcpuadam", "deepspeedcpulion"})
_TESTED_CLIENTS = frozenset({"adam", "adamw", "adagrad", "fusedadam", "fusedlion", "deepspeedcpuadagrad", *_CPU_CLIENTS})


@check
def optimizer_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """The optimizer the JSON names."""
    kind = effective.raw("optimizer.type")
    if not isinstance(kind, str) or kind == AUTO:
        if effective.block("optimizer") and kind is None:
            yield TYPE("optimizer.type", "the block names no optimizer, so DeepSpeed ignores it", "name one: AdamW")
        return
    name = kind.lower()
    if name in ONE_BIT_OPTIMIZERS:
        yield from _one_bit(kind, effective, context)
        return
    if name not in DEEPSPEED_OPTIMIZERS and kind not in TORCH_OPTIMIZERS:
        known = {known.lower(): known for known in ("AdamW", "Adam", "Lamb", "Lion", *TORCH_OPTIMIZERS)}
        near = [known[close] for close in get_close_matches(name, known, n=1, cutoff=0.6)]
        message = f"{shown(kind)} is neither an optimizer of DeepSpeed's nor a class of torch.optim"
        yield TYPE("optimizer.type", message, f"did you mean {near[0]}?" if near else "use AdamW")
        return
    yield from _parameters(name, effective, context)
    untested = name not in ZERO_OPTIMIZERS and effective.zero_stage > 0
    if untested and not effective.value("zero_allow_untested_optimizer"):
        message = f"ZeRO was not tested with {kind}, and refuses it"
        yield UNTESTED("optimizer.type", message, "use AdamW, or set zero_allow_untested_optimizer to true")
    if name == "lamb" and effective.value("fp16.enabled") and effective.value("fp16.loss_scale") != 0:
        yield LAMB("fp16.loss_scale", "LAMB needs a dynamic loss scale", "write 0")


@check
def client_optimizer_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """An optimizer that the script makes itself: beside an offload (checked even at stage 0), and under ZeRO."""
    client, named = context.client_optimizer, effective.given("optimizer.type")
    forced = effective.offload_device("offload_optimizer") != "none" and effective.value("zero_force_ds_cpu_optimizer")
    field, fix = "zero_optimization.offload_optimizer.device", 'name it in the JSON: "optimizer": {"type": "AdamW"}'
    if client is not None:
        if forced and client.lower() not in _CPU_CLIENTS:
            message = f"the script makes {client}, which does not step in host memory; DeepSpeed refuses it"
            yield CLIENT(field, message, f"{fix}, make a DeepSpeedCPUAdam, or set zero_force_ds_cpu_optimizer to false")
        untested = effective.zero_stage > 0 and client.lower() not in _TESTED_CLIENTS
        if untested and not effective.value("zero_allow_untested_optimizer"):
            message = f"ZeRO was not tested with {client}, which the script makes, and refuses it"
            yield UNTESTED("zero_allow_untested_optimizer", message, "set it to true, or make an AdamW")
    elif forced and not named and context.hf_arguments is not None:
        chosen = context.hf_arguments.get("optim") or "its default optimizer"
        message = f"accelerate exchanges {chosen} for a DeepSpeedCPUAdam and keeps lr and weight_decay only, not betas and eps"
        yield CLIENT(field, message, fix, Severity.warning)
    elif forced and not named:
        message = "the optimizer is offloaded and the JSON names none: DeepSpeed refuses any but DeepSpeedCPUAdam"
        yield CLIENT(field, message, f"{fix}, or make a DeepSpeedCPUAdam", Severity.warning)


@check
def scheduler_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """The scheduler the JSON names."""
    kind = effective.raw("scheduler.type")
    if not isinstance(kind, str) or kind == AUTO:
        return
    if kind not in SCHEDULERS:
        if kind not in TORCH_SCHEDULERS:
            near = get_close_matches(kind, [*SCHEDULERS, *TORCH_SCHEDULERS], n=1, cutoff=0.5)
            message = f"{shown(kind)} is neither a scheduler of DeepSpeed's nor one of torch"
            yield SCHEDULER_TYPE("scheduler.type", message, f"did you mean {near[0]}?" if near else "use WarmupLR")
        return
    params = effective.block("scheduler.params")
    yield from structure_of(SCHEDULERS[kind], params, "scheduler.params.", context)
    for needed in SCHEDULER_NEEDS.get(kind, ()):
        if params.get(needed) is None:
            yield SCHEDULER_STEPS(f"scheduler.params.{needed}", f"{kind} cannot be made without it", f"set {needed}")
    total, warmup = params.get("total_num_steps"), params.get("warmup_num_steps", 1000)
    if isinstance(total, int) and isinstance(warmup, int) and 0 < total < warmup:
        message = f"{total} steps end inside the warmup of {warmup}: the rate never reaches its peak"
        yield SCHEDULER_STEPS("scheduler.params.total_num_steps", message, "warm up for fewer steps", Severity.warning)


def _one_bit(kind: str, effective: Effective, context: LintContext) -> Iterator[Finding]:
    if not context.is_before(ONE_BIT_REMOVED):
        message = f"{kind} was removed in DeepSpeed {ONE_BIT_REMOVED}; the file is accepted and the engine refuses it"
        yield ONE_BIT("optimizer.type", message, "use AdamW")
    elif effective.zero_stage > 0:
        yield ONE_BIT("optimizer.type", f"{kind} works without ZeRO only", "set zero_optimization.stage to 0")


def _parameters(name: str, effective: Effective, context: LintContext) -> Iterator[Finding]:
    params: Mapping[str, Any] = effective.block("optimizer.params")
    known = DEEPSPEED_OPTIMIZERS.get(name)
    if "max_grad_norm" in params:
        message = "DeepSpeed does not take it from an optimizer, and the engine raises"
        yield GRAD_NORM("optimizer.params.max_grad_norm", message, "move the number to gradient_clipping")
    if isinstance(known, Block):
        rest = {key: value for key, value in params.items() if key != "max_grad_norm"}
        yield from structure_of(known, rest, "optimizer.params.", context)
    betas = params.get("betas")
    if isinstance(betas, list) and not (len(betas) == 2 and all(_is_decay(beta) for beta in betas)):
        yield BETAS("optimizer.params.betas", f"{shown(betas)} is no pair of decay rates", "write [0.9, 0.95]")


def _is_decay(beta: Any) -> bool:
    return isinstance(beta, (int, float)) and not isinstance(beta, bool) and 0 <= beta < 1
