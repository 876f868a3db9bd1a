"""The two schedules without an order to think about: naive model parallelism and GPipe."""

from __future__ import annotations

from orchestrator.planning.schedules.steps import Kind, Step, Steps


def naive_steps(*, micro_batches: int) -> Steps:
    """Every stage finishes a micro-batch before it takes the next, so one stage works at a time.

    The busy share is ``1 / num_stages``, whatever the number of micro-batches.
    """
    return tuple(
        Step(kind=kind, micro_batch=micro_batch)
        for micro_batch in range(micro_batches)
        for kind in (Kind.forward, Kind.backward)
    )


def gpipe_steps(*, micro_batches: int) -> Steps:
    """All forward passes, then all backward passes, both from the first micro-batch to the last.

    A stage holds all micro-batches; the bubble is ``(p - 1) / (m + p - 1)`` of the time (Huang et al. 2019, section 2.3).
    The paper runs the backward passes from the last micro-batch to the first, which changes neither.
    """
    return tuple(
        Step(kind=kind, micro_batch=micro_batch)
        for kind in (Kind.forward, Kind.backward)
        for micro_batch in range(micro_batches)
    )
