"""One forward, one backward: with a flush at the end of the batch (1F1B), and without one (PipeDream)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.planning.schedules.steps import Kind, Step, Steps


def one_f_one_b_steps(*, num_stages: int, micro_batches: int, stage: int) -> Steps:
    """As many forward passes as there are stages from here to the last, then a backward for each further forward.

    A stage holds ``min(p - stage, m)`` micro-batches; the bubble is that of GPipe, ``(p - 1) / (m + p - 1)`` of the time
    (PipeDream-Flush, Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training").
    """
    ahead = min(num_stages - stage, micro_batches)
    steps = [Step(kind=Kind.forward, micro_batch=micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(micro_batches):
        steps.append(Step(kind=Kind.backward, micro_batch=micro_batch))
        if micro_batch + ahead < micro_batches:
            steps.append(Step(kind=Kind.forward, micro_batch=micro_batch + ahead))
    return tuple(steps)


def pipedream_steps(*, num_stages: int, micro_batches: int, stage: int) -> Steps:
    """1F1B where every backward pass ends in an update of the stage's weights, and the pipeline never drains.

    Forward and backward of a micro-batch use the same weights: those its forward found, kept until its backward (weight
    stashing, Narayanan et al. 2019, "PipeDream", section 3.3). Stage ``s`` so keeps ``p - s`` versions, and micro-batch ``i``
    uses version ``max(0, i + 1 - (p - s))``: between stages, and from the newest weights, versions differ. Only the first
    fill costs time: the bubble tends to 0 as micro-batches go on.
    """
    return tuple(_versioned(one_f_one_b_steps(num_stages=num_stages, micro_batches=micro_batches, stage=stage)))


def _versioned(steps: Steps) -> Iterator[Step]:
    updates = 0
    stash: dict[int, int] = {}
    for step in steps:
        if step.kind is Kind.forward:
            stash[step.micro_batch] = updates
            yield replace(step, weight_version=updates)
        else:
            yield replace(step, weight_version=stash.pop(step.micro_batch), updates_weights=True)
            updates += 1
