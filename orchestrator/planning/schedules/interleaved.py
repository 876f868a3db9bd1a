"""Interleaved 1F1B: every stage holds several chunks of the model, and a micro-batch goes round the stages for each."""

from __future__ import annotations

from orchestrator.planning.schedules.steps import Kind, Step, Steps


def interleaved_steps(*, num_stages: int, micro_batches: int, num_chunks: int, stage: int) -> Steps:
    """1F1B over the ``v x m`` passes of a stage, taken in groups of ``p`` micro-batches for each chunk in turn.

    The bubble is ``(p - 1) / (v m + p - 1)`` of the time; the first stage holds ``p + (p - 1) / v`` micro-batches
    (Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 2.2). ``micro_batches``
    must be a multiple of ``num_stages``.
    """
    passes = num_chunks * micro_batches
    ahead = min(2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages + 1, passes)

    def step(kind: Kind, index: int) -> Step:
        group, within = divmod(index, num_stages * num_chunks)
        chunk, place = divmod(within, num_stages)
        if kind is Kind.backward:
            chunk = num_chunks - 1 - chunk
        return Step(kind=kind, micro_batch=group * num_stages + place, chunk=chunk)

    steps = [step(Kind.forward, index) for index in range(ahead)]
    for index in range(passes):
        steps.append(step(Kind.backward, index))
        if index + ahead < passes:
            steps.append(step(Kind.forward, index + ahead))
    return tuple(steps)
