"""Pipeline schedules: what each stage does in which order, what it holds, and how long it waits.

Symbols in the docstrings: ``p`` stages, ``m`` micro-batches of an optimizer step, ``v`` chunks of the model on a stage.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.schedules.dual_pipe import dual_pipe_steps, dual_pipe_v_steps
from orchestrator.planning.schedules.gpipe import gpipe_steps, naive_steps
from orchestrator.planning.schedules.interleaved import interleaved_steps
from orchestrator.planning.schedules.one_f_one_b import one_f_one_b_steps, pipedream_steps
from orchestrator.planning.schedules.replay import PassSeconds, Timeline, replay
from orchestrator.planning.schedules.steps import Kind, Place, Route, Steps
from orchestrator.planning.schedules.zero_bubble import zero_bubble_h1_steps


class Schedule(StrEnum):
    """Every schedule that can be analysed. Those of ``PipelineSchedule`` have the same values and can be run."""

    naive = "naive"
    gpipe = "gpipe"
    pipedream = "pipedream"
    one_f_one_b = "one_f_one_b"
    interleaved = "interleaved"
    zero_bubble_h1 = "zero_bubble_h1"
    dual_pipe = "dual_pipe"
    dual_pipe_v = "dual_pipe_v"


class Instruction(NamedTuple):
    """A pass that DeepSpeed's engine runs; ``phase`` is the chunk, and 0 where a stage holds one."""

    kind: Kind
    micro_batch: int
    phase: int


def unmet_condition(schedule: Schedule, *, num_stages: int, micro_batches: int, num_chunks: int = 1) -> str | None:
    """What speaks against a schedule of these sizes, with the values; None if it can be made."""
    stages, micros, chunks = f"{num_stages} stages", f"{micro_batches} micro-batches", f"{num_chunks} chunks"
    if schedule is Schedule.interleaved:
        if num_chunks < 2:
            return f"{schedule} needs at least 2 chunks a stage, not {chunks}"
        if micro_batches % num_stages:
            return f"{schedule} needs a multiple of {num_stages} micro-batches for {stages}, not {micro_batches}"
        return None
    if num_chunks != 1:
        return f"{schedule} sets the chunks of a stage itself and cannot have {chunks}"
    if schedule in (Schedule.dual_pipe, Schedule.dual_pipe_v) and micro_batches < 2 * num_stages:
        return f"{schedule} needs at least {2 * num_stages} micro-batches for {stages}, not {micro_batches}"
    if schedule is Schedule.dual_pipe and (num_stages % 2 or micro_batches % 2):
        return f"{schedule} needs even numbers, not {stages} and {micros}"
    return None


def chunks_per_stage(schedule: Schedule, num_chunks: int = 1) -> int:
    """Chunks of the model on each stage: ``num_chunks`` when interleaved, two where a stage stands in two streams."""
    return 2 if schedule in (Schedule.dual_pipe, Schedule.dual_pipe_v) else num_chunks


def schedule_steps(schedule: Schedule, *, num_stages: int, micro_batches: int, num_chunks: int = 1, stage: int) -> Steps:
    """What ``stage`` does in one optimizer step, in order. ``unmet_condition`` must be None for the sizes."""
    assert 0 <= stage < num_stages and micro_batches >= 1
    problem = unmet_condition(schedule, num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks)
    assert problem is None, problem
    match schedule:
        case Schedule.naive:
            return naive_steps(micro_batches=micro_batches)
        case Schedule.gpipe:
            return gpipe_steps(micro_batches=micro_batches)
        case Schedule.pipedream:
            return pipedream_steps(num_stages=num_stages, micro_batches=micro_batches, stage=stage)
        case Schedule.one_f_one_b:
            return one_f_one_b_steps(num_stages=num_stages, micro_batches=micro_batches, stage=stage)
        case Schedule.interleaved:
            return interleaved_steps(num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks, stage=stage)
        case Schedule.zero_bubble_h1:
            return zero_bubble_h1_steps(num_stages=num_stages, micro_batches=micro_batches, stage=stage)
        case Schedule.dual_pipe:
            return dual_pipe_steps(num_stages=num_stages, micro_batches=micro_batches, stage=stage)
        case Schedule.dual_pipe_v:
            return dual_pipe_v_steps(num_stages=num_stages, micro_batches=micro_batches, stage=stage)


def all_stage_steps(schedule: Schedule, *, num_stages: int, micro_batches: int, num_chunks: int = 1) -> tuple[Steps, ...]:
    """``schedule_steps`` of every stage."""
    return tuple(
        schedule_steps(schedule, num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks, stage=stage)
        for stage in range(num_stages)
    )


def routes(schedule: Schedule, *, num_stages: int, micro_batches: int, num_chunks: int = 1) -> tuple[Route, ...]:
    """The way of every micro-batch through the stages and their chunks, in the order of the model's layers."""
    stages = range(num_stages)
    down = tuple(Place(stage, 0) for stage in stages)
    up = tuple(Place(stage, 1) for stage in reversed(stages))
    if schedule is Schedule.dual_pipe:
        return (down,) * (micro_batches // 2) + (up,) * (micro_batches // 2)
    if schedule is Schedule.dual_pipe_v:
        return (down + up,) * micro_batches
    return (tuple(Place(stage, chunk) for chunk in range(num_chunks) for stage in stages),) * micro_batches


def in_flight(schedule: Schedule, *, num_stages: int, micro_batches: int, num_chunks: int = 1, stage: int) -> float:
    """Most activations that ``stage`` holds at once, in units of what one micro-batch leaves in a p-th of the model.

    They are held from the forward to the end of the backward, weight gradients included. A chunk of an interleaved stage is
    a v-th of the unit and one of DualPipeV half; one of DualPipe, which has two copies of the model, is a whole unit.
    """
    steps = schedule_steps(schedule, num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks, stage=stage)
    held = most = 0
    for step in steps:
        held += step.kind is Kind.forward
        most = max(most, held)
        held -= step.kind in (Kind.backward, Kind.backward_weight)
    return most if schedule is Schedule.dual_pipe else most / chunks_per_stage(schedule, num_chunks)


def weight_versions(steps: Steps) -> int:
    """Most versions of its weights that a stage keeps at once: the newest, and those that micro-batches in flight need."""
    newest = 0
    needed: dict[tuple[int, int], int] = {}
    most = 1
    for step in steps:
        key = (step.micro_batch, step.chunk)
        needed[key] = step.weight_version
        most = max(most, len({newest, *needed.values()}))
        if step.kind in (Kind.backward, Kind.backward_weight):
            del needed[key]
        newest += step.updates_weights
        most = max(most, len({newest, *needed.values()}))
    return most


def replay_schedule(
    schedule: Schedule,
    *,
    num_stages: int,
    micro_batches: int,
    num_chunks: int = 1,
    seconds: PassSeconds,
    transfer_seconds: float = 0,
) -> Timeline:
    """The timeline of one optimizer step with equal stages; ``seconds`` are those of one chunk. ``replay`` takes others."""
    even = ((seconds,) * chunks_per_stage(schedule, num_chunks),) * num_stages
    stages = all_stage_steps(schedule, num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks)
    ways = routes(schedule, num_stages=num_stages, micro_batches=micro_batches, num_chunks=num_chunks)
    return replay(stages, ways, even, transfer_seconds=transfer_seconds)


def bubble_fraction(
    schedule: Schedule,
    *,
    num_stages: int,
    micro_batches: int,
    num_chunks: int = 1,
    seconds: PassSeconds,
    transfer_seconds: float = 0,
) -> float:
    """Share of one optimizer step in which the stages, all equal, compute nothing; ``seconds`` are those of one chunk."""
    return replay_schedule(
        schedule,
        num_stages=num_stages,
        micro_batches=micro_batches,
        num_chunks=num_chunks,
        seconds=seconds,
        transfer_seconds=transfer_seconds,
    ).bubble_fraction


def executed_instructions(
    schedule: PipelineSchedule, *, num_stages: int, micro_batches: int, stage: int
) -> tuple[Instruction, ...]:
    """The forward and backward passes that DeepSpeed's engine runs on ``stage``, in order."""
    steps = schedule_steps(Schedule(schedule.value), num_stages=num_stages, micro_batches=micro_batches, stage=stage)
    return tuple(Instruction(kind=step.kind, micro_batch=step.micro_batch, phase=step.chunk) for step in steps)
