"""Rules about pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from orchestrator.config.schema import PartitionMethod, PipelineSchedule
from orchestrator.findings import Finding, error, info, warning
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_STAGES = "parallelism.pipeline_parallel_size"
WANTED_MICRO_BATCHES = 4
"""Micro-batches for each stage from which the bubble stays under a fifth of a step."""


@rule("pipeline-layers", "every pipeline stage holds at least one layer", Fact.model, Fact.layout, concerns_memory=True)
def pipeline_layers(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed gives the stages that are too many nothing, and fails later on an empty parameter list."""
    layers, stages = context.model.num_hidden_layers, context.layout.pipeline_parallel_size
    if layers < stages:
        yield error("pipeline-layers", _STAGES, f"{stages} stages for {layers} layers", f"set {_STAGES}={layers} or fewer")


@rule("pipeline-balance", "the layers divide over the stages", Fact.model, Fact.layout)
def pipeline_balance(context: RuleContext) -> Iterator[Finding]:
    """A stage with a layer more sets the pace of all."""
    layers, stages = context.model.num_hidden_layers, context.layout.pipeline_parallel_size
    uniform = context.config.parallelism.partition_method is PartitionMethod.uniform
    if uniform and layers >= stages and layers % stages:
        fewer = gcd(layers, stages)
        yield warning(
            "pipeline-balance",
            _STAGES,
            f"{layers} layers over {stages} stages: {layers % stages} stages hold {layers // stages + 1} layers, "
            f"the others {layers // stages}, and wait for them",
            f"set {_STAGES}={fewer}, or parallelism.partition_method=parameters",
        )


@rule("pipeline-zero-stage", "a pipeline goes with ZeRO stage 0 or 1", concerns_memory=True)
def pipeline_zero_stage(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed refuses the others after it has built the model."""
    stages, stage = context.config.parallelism.pipeline_parallel_size, context.config.zero.stage
    if stages > 1 and stage >= 2:
        yield error(
            "pipeline-zero-stage",
            "zero.stage",
            f"ZeRO stage {stage} does not work with a pipeline of {stages} stages",
            f"set zero.stage=1, or {_STAGES}=1",
        )


@rule("pipeline-bubble", "a step has several micro-batches for each stage", Fact.layout)
def pipeline_bubble(context: RuleContext) -> Iterator[Finding]:
    """With m micro-batches over p stages, (p - 1) / (m + p - 1) of a step is idle (Huang et al., 2019)."""
    stages, micro_batches = context.layout.pipeline_parallel_size, context.layout.gradient_accumulation_steps
    if stages > 1 and micro_batches < WANTED_MICRO_BATCHES * stages:
        idle = (stages - 1) / (micro_batches + stages - 1)
        wanted = WANTED_MICRO_BATCHES * stages
        yield warning(
            "pipeline-bubble",
            "training.gradient_accumulation_steps",
            f"{micro_batches} micro-batches over {stages} stages leave the devices idle for {idle:.0%} of a step",
            f"set training.gradient_accumulation_steps={wanted} or more: "
            f"{(stages - 1) / (wanted + stages - 1):.0%} idle, at the same batch with a smaller micro-batch",
        )


@rule("pipeline-overlap", "a pipeline does not overlap reduction with the backward pass")
def pipeline_overlap(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed switches it off."""
    if context.config.parallelism.pipeline_parallel_size > 1 and context.config.zero.overlap_comm:
        yield warning(
            "pipeline-overlap",
            "zero.overlap_comm",
            "true has no effect: DeepSpeed switches it off in a pipeline",
            "set zero.overlap_comm=false",
        )


@rule("pipeline-options", "options of a pipeline without a pipeline")
def pipeline_options(context: RuleContext) -> Iterator[Finding]:
    """They have no effect with one stage."""
    parallelism = context.config.parallelism
    if parallelism.pipeline_parallel_size != 1:
        return
    chosen = {
        "schedule": (parallelism.schedule, PipelineSchedule.one_f_one_b),
        "partition_method": (parallelism.partition_method, PartitionMethod.uniform),
    }
    for name, (value, default) in chosen.items():
        if value is not default:
            yield info(
                "pipeline-options",
                f"parallelism.{name}",
                f"{value.value} has no effect with one pipeline stage",
                f"set {_STAGES}=2 or more",
            )
