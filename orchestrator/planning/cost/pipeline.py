"""How long a pipeline takes from the first forward to the last backward pass, with stages of any times.

1F1B and GPipe have closed forms that equal the replay of their schedules (the tests compare them); DualPipeV is replayed.
Transfers are part of the passes: DeepSpeed's sends keep the sender busy. In the closed forms the last axis is the stages, and
the axes before it are layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.parameters import Size
from orchestrator.planning.schedule import Schedule, all_stage_steps, routes
from orchestrator.planning.schedules.compiled import CompiledSchedule, compile_schedule

StageChunks = Sequence[Sequence[float]]
"""Seconds by stage and chunk."""


def pipeline_seconds(schedule: PipelineSchedule, forward: StageChunks, backward: StageChunks, *, micro_batches: int) -> float:
    """Seconds of all micro-batches; ``forward`` and ``backward`` are those of one."""
    if len(forward) == 1:
        return micro_batches * (sum(forward[0]) + sum(backward[0]))
    if schedule is PipelineSchedule.dual_pipe_v:
        return _settled_replay(schedule, forward, backward, micro_batches=micro_batches)
    ahead, back = (np.array([chunks[0] for chunks in passes]) for passes in (forward, backward))
    closed_form = gpipe_seconds if schedule is PipelineSchedule.gpipe else one_f_one_b_seconds
    return float(closed_form(ahead, back, micro_batches))


def replayed_seconds(schedule: PipelineSchedule, forward: StageChunks, backward: StageChunks, *, micro_batches: int) -> float:
    """The same, by replaying the steps that DeepSpeed runs."""
    return _compiled(Schedule(schedule.value), len(forward), micro_batches).seconds(forward, backward)


@lru_cache(maxsize=128)
def _compiled(schedule: Schedule, num_stages: int, micro_batches: int) -> CompiledSchedule:
    steps = all_stage_steps(schedule, num_stages=num_stages, micro_batches=micro_batches)
    return compile_schedule(steps, routes(schedule, num_stages=num_stages, micro_batches=micro_batches))


def gpipe_seconds(forward: np.ndarray, backward: np.ndarray, micro_batches: Size) -> np.ndarray:
    """GPipe: its slowest stage sets the pace of each half."""
    return np.asarray(forward.sum(-1) + backward.sum(-1) + (micro_batches - 1) * (forward.max(-1) + backward.max(-1)))


def one_f_one_b_seconds(forward: np.ndarray, backward: np.ndarray, micro_batches: Size) -> np.ndarray:
    """1F1B as its longest path: down to a stage, an excursion to a later one, round after round, another excursion, and up.

    Stage ``s`` has ``k = min(p - s, m)`` forwards ahead of its first backward, and between its excursions ``m - k`` rounds of
    one forward and one backward. An excursion goes on to a stage ``q >= s`` and comes back. On the way out from the first
    stage, or back to it, it waits for ``k_q - 1`` further passes where they take longest.
    """
    stages = forward.shape[-1]
    ahead = np.minimum(stages - np.arange(stages), np.asarray(micro_batches)[..., None])
    rounds = np.asarray(micro_batches)[..., None] - ahead
    both = forward + backward
    through = np.cumsum(both, -1)
    out = _furthest(through + (ahead - 1) * np.maximum.accumulate(forward, -1)) - backward
    back = _furthest(through + (ahead - 1) * np.maximum.accumulate(backward, -1)) - forward
    without_rounds = np.maximum(out + ahead * backward, back + ahead * forward)
    paths = np.where(rounds > 0, out + rounds * both + back - through + both, without_rounds)
    return np.asarray(paths.max(-1))


def dual_pipe_v_bound(forward: np.ndarray, backward: np.ndarray, micro_batches: Size) -> np.ndarray:
    """No DualPipeV is faster: a coordinate starts when the first micro-batch has come to it, does all its passes, and the last
    gradient still goes back to the first stage.

    ``forward`` and ``backward`` have the ``2 p`` stages in the order of the layers; coordinate ``r`` holds ``r`` and
    ``2 p - 1 - r``.
    """
    both = forward + backward
    half = both.shape[-1] // 2
    way_out, way_back = both[..., :half], both[..., : half - 1 : -1]
    before = np.cumsum(way_out, -1) - way_out
    return np.asarray((before + np.asarray(micro_batches)[..., None] * (way_out + way_back)).max(-1))


def _furthest(values: np.ndarray) -> np.ndarray:
    """The largest at each place or after it."""
    return np.maximum.accumulate(values[..., ::-1], -1)[..., ::-1]


def _settled_replay(schedule: PipelineSchedule, forward: StageChunks, backward: StageChunks, *, micro_batches: int) -> float:
    """The replay, of no more micro-batches than it needs to settle: from then on each adds the same time."""
    settled = 6 * len(forward)
    if micro_batches <= settled:
        return replayed_seconds(schedule, forward, backward, micro_batches=micro_batches)
    seconds = replayed_seconds(schedule, forward, backward, micro_batches=settled)
    slowest = max(sum(ahead) + sum(back) for ahead, back in zip(forward, backward, strict=True))
    return seconds + (micro_batches - settled) * slowest
