"""Rules about collectives."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import Precision
from orchestrator.deepspeed_config.settings import OptimizerWrapper
from orchestrator.findings import Finding, Severity, error, warning
from orchestrator.planning.rules.registry import RuleContext, rule


@rule("predivide-reduce-scatter", "reduce_scatter divides gradients itself", Severity.error)
def predivide(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed refuses the combination at stages 2 and 3 and ignores the factor at stage 1."""
    communication = context.config.communication
    shards = context.settings.optimizer_wrapper in (OptimizerWrapper.zero12, OptimizerWrapper.zero3)
    if not (shards and context.settings.reduce_scatter):
        return
    if communication.prescale_gradients:
        yield error(
            "predivide-reduce-scatter",
            "communication.prescale_gradients",
            f"true does not work with reduce_scatter at ZeRO stage {context.settings.zero_stage}",
            "set communication.prescale_gradients=false, or zero.reduce_scatter=false",
        )
    if communication.gradient_predivide_factor != 1.0:
        yield error(
            "predivide-reduce-scatter",
            "communication.gradient_predivide_factor",
            f"{communication.gradient_predivide_factor} does not work with reduce_scatter at ZeRO stage "
            f"{context.settings.zero_stage}",
            "set communication.gradient_predivide_factor=1, or zero.reduce_scatter=false",
        )


@rule("communication-precision", "gradients do not travel in a format with less range or fewer digits", Severity.warning)
def communication_precision(context: RuleContext) -> Iterator[Finding]:
    """fp16 overflows at 65504, and only fp16 training scales the loss to live with that."""
    sent, dtype = context.settings.communication_data_type, context.settings.dtype
    if sent is Precision.fp16 and dtype is not Precision.fp16:
        yield warning(
            "communication-precision",
            "communication.communication_data_type",
            f"{dtype.value} gradients overflow when they are summed in fp16",
            f"set communication.communication_data_type={dtype.value}",
        )
    elif sent is Precision.bf16 and dtype is not Precision.bf16:
        yield warning(
            "communication-precision",
            "communication.communication_data_type",
            f"{dtype.value} gradients keep eight significant bits when they are summed in bf16",
            f"set communication.communication_data_type={dtype.value}",
        )


@rule("predivide-prescale", "gradients are divided before the sum in one way", Severity.warning)
def predivide_prescale(context: RuleContext) -> Iterator[Finding]:
    """``prescale_gradients`` divides by all ranks before the sum and never looks at the factor (``allreduce_bucket``)."""
    communication = context.config.communication
    if communication.prescale_gradients and communication.gradient_predivide_factor != 1.0:
        yield warning(
            "predivide-prescale",
            "communication.gradient_predivide_factor",
            f"{communication.gradient_predivide_factor} has no effect with communication.prescale_gradients=true",
            "set communication.prescale_gradients=false, or communication.gradient_predivide_factor=1",
        )
