"""What the cost model says of a published run.

Two things that others run and DeepSpeed does not are added here: interleaved stages, whose bubble is a v-th of 1F1B's and which
send v times as often (Narayanan et al. 2021, section 2.2), and sequences shared by ranks, which count as shares of a
micro-batch.
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
from tests.benchmarks.published_throughput import Run


def predicted_seconds(run: Run) -> float | str:
    """Seconds of the row's step, or why there is no prediction."""
    try:
        step, partition = step_of(run)
        lacking = missing_facts(step.cluster, step.settings.dtype)
        if lacking is not None:
            return lacking
        return run.scale * interleaved_seconds(step_time(step, partition), run.num_chunks)
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


def interleaved_seconds(time: StepTime, num_chunks: int) -> float:
    """The step with ``num_chunks`` chunks of the model on each stage."""
    exposed = {name: component.exposed_seconds for name, component in time.components.items()}
    saved = exposed.get("pipeline_bubble", 0.0) * (1 - 1 / num_chunks)
    return time.step_seconds - saved + exposed.get("pipeline_transfers", 0.0) * (num_chunks - 1)
