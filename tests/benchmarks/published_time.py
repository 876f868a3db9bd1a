"""What the cost model says of a published run.

What others run and DeepSpeed does not is added here:

- interleaved stages: the bubble is a v-th of 1F1B's, and v times as much is sent (Narayanan et al. 2021, section 2.2)
- Megatron's tensor-parallel ranks each send a share of the stage's output to the next host (section 4.1)
- Megatron-Core reduces gradients in the last backward pass and gathers parameters in the first forward pass of the next step
- sequences shared by ranks count as shares of a micro-batch
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.planning.cost.speeds import missing_facts
from orchestrator.planning.cost.step_time import StepTime, step_time
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.partition import Partition
from tests.benchmarks.published_fit import memory_row
from tests.benchmarks.published_memory import case_of
from tests.benchmarks.published_systems import deepspeed_settings
from tests.benchmarks.published_throughput import Run, System

PASSES = ("matrix_products", "attention", "element_wise", "recomputation", "launches")
"""Components of the passes beside which Megatron-Core communicates."""


def predicted_seconds(run: Run) -> float | str:
    """Seconds of the row's step, or why there is no prediction."""
    try:
        step, partition = step_of(run)
        lacking = missing_facts(step.cluster, step.settings.dtype)
        if lacking is not None:
            return lacking
        return run.scale * seconds_under(run, step_time(step, partition))
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as problem:
        return f"the cost model fails: {type(problem).__name__} {problem}"


def step_of(run: Run) -> tuple[TrainingStep, Partition]:
    """The run as the cost model takes it. Raises NotPredictable."""
    case = case_of(memory_row(run))
    shared, micro = run.context_parallel_size, run.layout.train_micro_batch_size_per_gpu
    passed = replace(
        case.passed,
        micro_batch=micro if shared == 1 else micro / shared,
        sequence_length=run.row.whole("seq_len"),
    )
    step = TrainingStep(
        spec=run.model,
        cluster=run.cluster,
        settings=deepspeed_settings(case),
        passed=passed,
        pipeline_parallel_size=run.layout.pipeline_parallel_size,
        data_parallel_size=run.layout.data_parallel_size,
        micro_batches=run.layout.gradient_accumulation_steps,
    )
    return step, case.partition


def seconds_under(run: Run, time: StepTime) -> float:
    """The step as the system of a run makes it, from the step as DeepSpeed would."""
    exposed = {name: component.exposed_seconds for name, component in time.components.items()}
    bubble, sends = exposed.get("pipeline_bubble", 0.0), exposed.get("pipeline_transfers", 0.0)
    seconds = time.step_seconds - bubble * (1 - 1 / run.num_chunks)
    if run.system in (System.megatron, System.megatron_core):
        splits = 1 if run.sequence_parallel else run.layout.tensor_parallel_size
        seconds += sends * (run.num_chunks / splits - 1)
    if run.system is System.megatron_core:
        beside = sum(exposed.get(name, 0.0) for name in PASSES) / run.layout.gradient_accumulation_steps
        seconds -= min(beside, exposed.get("gradient_reduction", 0.0) + exposed.get("parameter_gather", 0.0))
    return float(seconds)
