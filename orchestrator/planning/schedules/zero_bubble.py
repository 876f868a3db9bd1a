"""Zero-bubble H1: weight gradients wait until a stage would be idle."""

from __future__ import annotations

from orchestrator.planning.schedules.steps import Kind, Step, Steps


def zero_bubble_h1_steps(*, num_stages: int, micro_batches: int, stage: int) -> Steps:
    """1F1B with the backward pass in two halves; stage ``s`` lags ``s`` micro-batches behind with weight gradients.

    What is left idle is ``(p - 1) (F + B - W)``, in the times of the forward and of the two halves, with at least ``p``
    micro-batches and ``W`` no longer than ``F`` and ``B``; of a longer ``W``, the shorter of ``F`` and ``B`` counts. No stage
    holds more than the ``p`` micro-batches that the first holds under 1F1B (Qi et al. 2023, "Zero bubble pipeline
    parallelism", section 2).
    """
    ahead = min(num_stages - stage, micro_batches)
    steps = [Step(kind=Kind.forward, micro_batch=micro_batch) for micro_batch in range(ahead)]
    for micro_batch in range(micro_batches):
        steps.append(Step(kind=Kind.backward_input, micro_batch=micro_batch))
        if micro_batch >= stage:
            steps.append(Step(kind=Kind.backward_weight, micro_batch=micro_batch - stage))
        if micro_batch + ahead < micro_batches:
            steps.append(Step(kind=Kind.forward, micro_batch=micro_batch + ahead))
    left = range(max(micro_batches - stage, 0), micro_batches)
    steps.extend(Step(kind=Kind.backward_weight, micro_batch=micro_batch) for micro_batch in left)
    return tuple(steps)
