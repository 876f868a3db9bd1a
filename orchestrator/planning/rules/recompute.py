"""Rules about activation recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import RecomputePolicy
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_GROUP = "activation_checkpointing"
_KEEPS_INPUTS = (RecomputePolicy.full, RecomputePolicy.every_k_layers)
USUAL_INTERVAL = 2
"""The default of ``interval``: with another policy it says nothing."""


@rule("recompute-interval", "the interval goes with every_k_layers, and pays", Severity.warning, Fact.model, Fact.layout)
def recompute_interval(context: RuleContext) -> Iterator[Finding]:
    """Of L layers L/k inputs are kept and k layers are alive while they are recomputed (Chen et al., 2016)."""
    checkpointing = context.config.activation_checkpointing
    interval, field = checkpointing.interval, f"{_GROUP}.interval"
    if checkpointing.policy is not RecomputePolicy.every_k_layers:
        if interval != USUAL_INTERVAL:
            yield info(
                "recompute-interval",
                field,
                f"{interval} has no effect with {_GROUP}.policy={checkpointing.policy.value}",
                f"set {_GROUP}.policy=every_k_layers, or {field}={USUAL_INTERVAL}",
            )
        return
    layers = -(-context.model.num_hidden_layers // context.layout.pipeline_parallel_size)
    if interval > layers >= 1:
        best = max(1, round(layers**0.5))
        yield warning(
            "recompute-interval",
            field,
            f"{interval} layers are more than a stage holds ({layers}): all of those are alive at once in the backward pass",
            f"set {field}={best}",
        )


@rule("recompute-partition", "partitioned activations are inputs that are kept, whole on several ranks", Severity.error)
def recompute_partition(context: RuleContext) -> Iterator[Finding]:
    """Each tensor-parallel rank keeps a share of what all of them have."""
    checkpointing, parallelism = context.config.activation_checkpointing, context.config.parallelism
    if not checkpointing.partition_activations:
        return
    field = f"{_GROUP}.partition_activations"
    if checkpointing.policy not in _KEEPS_INPUTS:
        yield error(
            "recompute-partition",
            field,
            "true divides the inputs that recomputation starts from, and "
            f"{_GROUP}.policy={checkpointing.policy.value} keeps none",
            f"set {field}=false, or {_GROUP}.policy=full",
        )
    elif parallelism.tensor_parallel_size == 1:
        yield error(
            "recompute-partition",
            field,
            "true divides activations over the tensor-parallel ranks, and parallelism.tensor_parallel_size=1",
            f"set {field}=false",
        )
    elif parallelism.sequence_parallel:
        yield info(
            "recompute-partition",
            field,
            "true has no effect: with parallelism.sequence_parallel=true the inputs are divided already",
            f"set {field}=false",
        )


@rule("recompute-host", "only inputs that recomputation starts from go to host memory", Severity.error)
def recompute_host(context: RuleContext) -> Iterator[Finding]:
    """Without recomputation of whole layers there are none."""
    checkpointing = context.config.activation_checkpointing
    if checkpointing.cpu_checkpointing and checkpointing.policy not in _KEEPS_INPUTS:
        yield error(
            "recompute-host",
            f"{_GROUP}.cpu_checkpointing",
            "true moves the inputs that recomputation starts from, and "
            f"{_GROUP}.policy={checkpointing.policy.value} keeps none",
            f"set {_GROUP}.cpu_checkpointing=false, or {_GROUP}.policy=full",
        )
