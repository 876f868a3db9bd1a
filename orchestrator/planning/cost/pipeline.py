"""How long a pipeline takes from the first forward to the last backward pass, with stages of any times.

1F1B and GPipe have closed forms that equal the replay of their schedules (the tests compare them); DualPipeV is replayed.
Transfers are part of the passes: DeepSpeed's sends keep the sender busy. The closed forms take numbers, or arrays of layouts,
for each stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.broadcast import choose, larger, smaller
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
    ahead, back = ([chunks[0] for chunks in passes] for passes in (forward, backward))
    closed_form = gpipe_seconds if schedule is PipelineSchedule.gpipe else one_f_one_b_seconds
    return float(closed_form(ahead, back, micro_batches))


def replayed_seconds(schedule: PipelineSchedule, forward: StageChunks, backward: StageChunks, *, micro_batches: int) -> float:
    """The same, by replaying the steps that DeepSpeed runs."""
    return _compiled(Schedule(schedule.value), len(forward), micro_batches).seconds(forward, backward)


@lru_cache(maxsize=128)
def _compiled(schedule: Schedule, num_stages: int, micro_batches: int) -> CompiledSchedule:
    steps = all_stage_steps(schedule, num_stages=num_stages, micro_batches=micro_batches)
    return compile_schedule(steps, routes(schedule, num_stages=num_stages, micro_batches=micro_batches))


def gpipe_seconds(forward: Sequence[Size], backward: Sequence[Size], micro_batches: Size) -> Size:
    """GPipe: its slowest stage sets the pace of each half."""
    return sum(forward) + sum(backward) + (micro_batches - 1) * (larger(*forward) + larger(*backward))


def one_f_one_b_seconds(forward: Sequence[Size], backward: Sequence[Size], micro_batches: Size) -> Size:
    """1F1B as its longest path: down to a stage, an excursion to a later one, round after round, another excursion, and up.

    Stage ``s`` has ``k = min(p - s, m)`` forwards ahead of its first backward, and between its excursions ``m - k`` rounds of
    one forward and one backward. An excursion goes on to a stage ``q >= s`` and comes back. On the way out from the first
    stage, or back to it, it waits for ``k_q - 1`` further passes where they take longest.
    """
    stages = len(forward)
    ahead = [smaller(stages - stage, micro_batches) for stage in range(stages)]
    both = [one + other for one, other in zip(forward, backward, strict=True)]
    through = list(accumulate(both))
    outward, homeward = (
        [
            before + (waits - 1) * slowest
            for before, waits, slowest in zip(through, ahead, accumulate(passes, larger), strict=True)
        ]
        for passes in (forward, backward)
    )
    longest: Size = 0.0
    furthest_out, furthest_back = outward[-1], homeward[-1]
    for stage in reversed(range(stages)):
        furthest_out, furthest_back = larger(furthest_out, outward[stage]), larger(furthest_back, homeward[stage])
        out, back = furthest_out - backward[stage], furthest_back - forward[stage]
        rounds = micro_batches - ahead[stage]
        without_rounds = larger(out + ahead[stage] * backward[stage], back + ahead[stage] * forward[stage])
        with_rounds = out + back + rounds * both[stage] - through[stage] + both[stage]
        longest = larger(longest, choose(rounds > 0, with_rounds, without_rounds))
    return longest


def dual_pipe_v_bound(forward: Sequence[Size], backward: Sequence[Size], micro_batches: Size) -> Size:
    """No DualPipeV is faster: a coordinate starts when the first micro-batch has come to it, does all its passes, and the last
    gradient still goes back to the first stage.

    ``forward`` and ``backward`` have the ``2 p`` stages in the order of the layers; coordinate ``r`` holds ``r`` and
    ``2 p - 1 - r``.
    """
    both = [one + other for one, other in zip(forward, backward, strict=True)]
    longest: Size = 0.0
    before: Size = 0.0
    for out, back in zip(both[: len(both) // 2], reversed(both), strict=False):
        longest = larger(longest, before + micro_batches * (out + back))
        before = before + out
    return longest


def _settled_replay(schedule: PipelineSchedule, forward: StageChunks, backward: StageChunks, *, micro_batches: int) -> float:
    """The replay, of no more micro-batches than it needs to settle: from then on each adds the same time."""
    settled = 6 * len(forward)
    if micro_batches <= settled:
        return replayed_seconds(schedule, forward, backward, micro_batches=micro_batches)
    seconds = replayed_seconds(schedule, forward, backward, micro_batches=settled)
    slowest = max(sum(ahead) + sum(back) for ahead, back in zip(forward, backward, strict=True))
    return seconds + (micro_batches - settled) * slowest
