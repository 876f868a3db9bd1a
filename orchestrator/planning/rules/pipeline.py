"""Rules about pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from orchestrator.config.enums import PipelineSchedule
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.partition import BALANCED, PARAMETERS, UNIFORM, stages_per_rank
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_STAGES = "parallelism.pipeline_parallel_size"
WANTED_MICRO_BATCHES = 4
"""Micro-batches for each stage from which the bubble stays under a fifth of a step."""


@rule(
    "pipeline-layers",
    "every pipeline stage holds at least one layer",
    Severity.error,
    Fact.model,
    Fact.layout,
    concerns_memory=True,
)
def pipeline_layers(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed gives the stages that are too many nothing, and fails later on an empty parameter list.

    Explicit boundaries and ``type:REGEX`` may leave stages without a transformer layer; they are checked for themselves.
    """
    layers, stages = context.model.num_hidden_layers, context.layout.pipeline_parallel_size
    held = stages_per_rank(context.config.parallelism.schedule, stages)
    by_layers = context.config.parallelism.partition_method in (UNIFORM, PARAMETERS, BALANCED)
    if by_layers and held == 2 and layers < 2 * stages:
        fixes = [f"set {_STAGES}={layers // 2} or fewer"] if layers // 2 > 1 else []
        fixes += ["set parallelism.schedule=one_f_one_b"] if layers >= stages else []
        yield error(
            "pipeline-layers",
            _STAGES,
            f"dual_pipe_v gives each of {stages} coordinates two stages: {2 * stages} stages for {layers} layers",
            ", or ".join(fixes) or f"set {_STAGES}=1 and parallelism.schedule=one_f_one_b",
        )
    elif by_layers and layers < stages:
        yield error("pipeline-layers", _STAGES, f"{stages} stages for {layers} layers", f"set {_STAGES}={layers} or fewer")


@rule("pipeline-balance", "the layers divide over the stages", Severity.warning, Fact.model, Fact.layout)
def pipeline_balance(context: RuleContext) -> Iterator[Finding]:
    """A stage with a layer more sets the pace of all."""
    parallelism = context.config.parallelism
    layers, coordinates = context.model.num_hidden_layers, context.layout.pipeline_parallel_size
    stages = coordinates * stages_per_rank(parallelism.schedule, coordinates)
    if parallelism.partition_method == UNIFORM and layers >= stages and layers % stages:
        fewer = max(
            size for size in range(1, coordinates) if (coordinates % size == 0 and size * layers % stages == 0) or size == 1
        )
        yield warning(
            "pipeline-balance",
            _STAGES,
            f"{layers} layers over {stages} stages: {layers % stages} stages hold {layers // stages + 1} layers, "
            f"the others {layers // stages}, and wait for them",
            f"set {_STAGES}={fewer}, or parallelism.partition_method=balanced",
        )


@rule(
    "pipeline-boundary",
    "activations between stages are cut over the tensor-parallel ranks",
    Severity.error,
    Fact.model,
    Fact.layout,
)
def pipeline_boundary(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed sends each rank's equal share of micro-batch x sequence x hidden elements."""
    layout, parallelism = context.layout, context.config.parallelism
    tp = layout.tensor_parallel_size
    cut = layout.pipeline_parallel_size > 1 and not parallelism.sequence_parallel
    if not cut or parallelism.schedule is PipelineSchedule.dual_pipe_v:
        return
    micro, length, hidden = (
        layout.train_micro_batch_size_per_gpu,
        context.config.data.sequence_length,
        context.model.hidden_size,
    )
    if micro * length * hidden % tp:
        yield error(
            "pipeline-boundary",
            "parallelism.tensor_parallel_size",
            f"micro-batch {micro} x sequence {length} x hidden {hidden} elements between stages do not divide over {tp} ranks",
            f"set parallelism.tensor_parallel_size={gcd(micro * length * hidden, tp)}",
        )


@rule("dual-pipe-v", "DualPipeV has stages and micro-batches enough", Severity.error)
def dual_pipe_v(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed's engine asserts twice as many micro-batches as coordinates."""
    if context.config.parallelism.schedule is not PipelineSchedule.dual_pipe_v:
        return
    stages = context.config.parallelism.pipeline_parallel_size
    if stages == 1:
        yield error(
            "dual-pipe-v",
            "parallelism.schedule",
            f"dual_pipe_v needs a pipeline of at least 2 stages, and {_STAGES}=1",
            f"set {_STAGES}=2, or parallelism.schedule=one_f_one_b",
        )
    elif context.has(Fact.layout) and context.layout.gradient_accumulation_steps < 2 * stages:
        yield error(
            "dual-pipe-v",
            "training.gradient_accumulation_steps",
            f"dual_pipe_v needs at least 2 x {stages} micro-batches in a step, and there are "
            f"{context.layout.gradient_accumulation_steps}",
            f"set training.gradient_accumulation_steps={2 * stages}, or parallelism.schedule=one_f_one_b",
        )


@rule("pipeline-zero-stage", "a pipeline goes with ZeRO stage 0 or 1", Severity.error, concerns_memory=True)
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


@rule("pipeline-bubble", "a step has several micro-batches for each stage", Severity.warning, Fact.layout)
def pipeline_bubble(context: RuleContext) -> Iterator[Finding]:
    """With m micro-batches over p stages, (p - 1) / (m + p - 1) of a step is idle (Huang et al., 2019).

    DeepSpeed's DualPipeV idles for 2 (p - 1) - 1/2 forward passes where 1F1B does for 3 (p - 1): its step list replayed with
    backward passes twice as long as forward ones.
    """
    stages, micro_batches = context.layout.pipeline_parallel_size, context.layout.gradient_accumulation_steps
    if stages > 1 and micro_batches < WANTED_MICRO_BATCHES * stages:
        schedule = context.config.parallelism.schedule
        idle, wanted = _idle(micro_batches, stages, schedule), WANTED_MICRO_BATCHES * stages
        yield warning(
            "pipeline-bubble",
            "training.gradient_accumulation_steps",
            f"{micro_batches} micro-batches over {stages} stages leave the devices idle for {idle:.0%} of a step",
            f"set training.gradient_accumulation_steps={wanted} or more: "
            f"{_idle(wanted, stages, schedule):.0%} idle, at the same batch with a smaller micro-batch",
        )


@rule("pipeline-overlap", "a pipeline does not overlap reduction with the backward pass", Severity.warning)
def pipeline_overlap(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed switches it off."""
    if context.config.parallelism.pipeline_parallel_size > 1 and context.config.zero.overlap_comm:
        yield warning(
            "pipeline-overlap",
            "zero.overlap_comm",
            "true has no effect: DeepSpeed switches it off in a pipeline",
            "set zero.overlap_comm=false",
        )


@rule("pipeline-options", "options of a pipeline without a pipeline", Severity.info)
def pipeline_options(context: RuleContext) -> Iterator[Finding]:
    """They have no effect with one stage; DualPipeV is refused by its own rule."""
    parallelism = context.config.parallelism
    if parallelism.pipeline_parallel_size != 1:
        return
    chosen = {"schedule": parallelism.schedule, "partition_method": parallelism.partition_method}
    usual = {PipelineSchedule.one_f_one_b, PipelineSchedule.dual_pipe_v, UNIFORM}
    for name, value in chosen.items():
        if value not in usual:
            yield info(
                "pipeline-options",
                f"parallelism.{name}",
                f"{value} has no effect with one pipeline stage",
                f"set {_STAGES}=2 or more",
            )


def _idle(micro_batches: int, stages: int, schedule: PipelineSchedule) -> float:
    """Share of a step in which a device has nothing to do."""
    dual = schedule is PipelineSchedule.dual_pipe_v
    idle = 2 * (stages - 1) - 0.5 if dual else 3 * (stages - 1)
    return idle / (3 * micro_batches + idle)
