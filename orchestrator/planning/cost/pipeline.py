"""How long a pipeline takes from the first forward to the last backward, with stages of any times.

1F1B and GPipe have exact closed forms, which the tests compare with the replay of their schedules; DualPipeV is replayed.
Transfers are part of the passes: DeepSpeed's sends keep the sender busy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.schedule import Schedule, all_stage_steps, routes
from orchestrator.planning.schedules.replay import PassSeconds, replay


def pipeline_seconds(
    schedule: PipelineSchedule, forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]], *, micro_batches: int
) -> float:
    """Seconds of all micro-batches; ``forward`` and ``backward`` are of one, by stage and chunk."""
    if len(forward) == 1 and len(forward[0]) == 1:
        return micro_batches * (forward[0][0] + backward[0][0])
    if schedule is PipelineSchedule.dual_pipe_v:
        return replayed_seconds(schedule, forward, backward, micro_batches=micro_batches)
    first = np.array([chunks[0] for chunks in forward])
    second = np.array([chunks[0] for chunks in backward])
    if schedule is PipelineSchedule.gpipe:
        return float(gpipe_seconds(first, second, micro_batches))
    return float(one_f_one_b_seconds(first, second, micro_batches))


def replayed_seconds(
    schedule: PipelineSchedule, forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]], *, micro_batches: int
) -> float:
    """The same by replaying the steps that DeepSpeed runs."""
    kind, stages = Schedule(schedule.value), len(forward)
    steps = all_stage_steps(kind, num_stages=stages, micro_batches=micro_batches)
    seconds = [
        [PassSeconds(forward=ahead, backward_input=back, backward_weight=0.0) for ahead, back in zip(*both, strict=True)]
        for both in zip(forward, backward, strict=True)
    ]
    return replay(steps, routes(kind, num_stages=stages, micro_batches=micro_batches), seconds).seconds


def gpipe_seconds(forward: np.ndarray, backward: np.ndarray, micro_batches: int) -> np.ndarray:
    """GPipe: the slowest stage sets the pace of either half. The last axis is the stages."""
    more = micro_batches - 1
    return forward.sum(-1) + backward.sum(-1) + more * (forward.max(-1) + backward.max(-1))


def one_f_one_b_seconds(forward: np.ndarray, backward: np.ndarray, micro_batches: int) -> np.ndarray:
    """1F1B as its longest path: down to a stage, an excursion to a later one, round after round, another excursion, and up.

    Stage ``s`` has ``k = min(p - s, m)`` forwards ahead of its first backward, and between its excursions ``m - k`` rounds of one
    forward and one backward. An excursion goes on to a stage ``q >= s`` and comes back; on its way from the first stage or back
    to it, it waits for ``k_q - 1`` further passes where they take longest. The last axis is the stages.
    """
    stages = forward.shape[-1]
    ahead = np.minimum(stages - np.arange(stages), micro_batches)
    both = forward + backward
    through = np.cumsum(both, -1)
    out = _furthest(through + (ahead - 1) * np.maximum.accumulate(forward, -1)) - backward
    back = _furthest(through + (ahead - 1) * np.maximum.accumulate(backward, -1)) - forward
    rounds = micro_batches - ahead
    there_and_on = np.maximum(out + ahead * backward, back + ahead * forward)
    return np.where(rounds > 0, out + rounds * both + back - through + both, there_and_on).max(-1)


def _furthest(values: np.ndarray) -> np.ndarray:
    """The largest at each place or after it."""
    return np.maximum.accumulate(values[..., ::-1], -1)[..., ::-1]
