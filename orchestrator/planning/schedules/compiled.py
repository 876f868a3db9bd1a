"""A schedule as a list of operations in an order in which they can run: made once, replayed with any times.

Only for schedules whose backward passes are whole. ``replay`` is the reference, which also keeps the timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.planning.schedules.replay import DeadlockError
from orchestrator.planning.schedules.steps import Kind, Place, Route, Step, Steps


@dataclass(frozen=True, slots=True)
class Operation:
    """A step, or a forward and a backward that run together; places are those of the times and ends they look up."""

    times: tuple[int, ...]
    """Places of the times that it takes, in the list of all passes."""
    needs: tuple[int, ...]
    """Operations that end before it starts."""


@dataclass(frozen=True, slots=True)
class CompiledSchedule:
    """Operations, each after those it needs."""

    operations: tuple[Operation, ...]

    def seconds(self, forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]]) -> float:
        """From the first start to the last end; the times are of one micro-batch, by stage and chunk."""
        times = [time for passes in (forward, backward) for chunks in passes for time in chunks]
        ends: list[float] = []
        for operation in self.operations:
            start = 0.0
            for other in operation.needs:
                if ends[other] > start:
                    start = ends[other]
            for place in operation.times:
                start += times[place]
            ends.append(start)
        return max(ends)


def compile_schedule(stages: Sequence[Steps], routes: Sequence[Route]) -> CompiledSchedule:
    """The operations of ``stages``, with ``routes`` as ``replay`` has them.

    Raises:
        DeadlockError: no order of the stages lets all steps run.
    """
    chunks = 1 + max(step.chunk for steps in stages for step in steps)
    positions: dict[Route, dict[Place, int]] = {}
    together = [_pairs(steps) for steps in stages]
    done: dict[tuple[Kind, int, Place], int] = {}
    operations: list[Operation] = []
    following, last = [0] * len(stages), [-1] * len(stages)
    progress = True
    while progress:
        progress = False
        for stage, pairs in enumerate(together):
            while following[stage] < len(pairs):
                pair = pairs[following[stage]]
                needs = [done.get(key) for step in pair for key in _needs(step, stage, routes[step.micro_batch], positions)]
                known = [place for place in needs if place is not None]
                if len(known) < len(needs):
                    break
                before = [last[stage]] if last[stage] >= 0 else []
                times = tuple(_time_place(step, stage, len(stages), chunks) for step in pair)
                for step in pair:
                    done[step.kind, step.micro_batch, Place(stage, step.chunk)] = len(operations)
                last[stage] = len(operations)
                operations.append(Operation(times, (*before, *known)))
                following[stage] += 1
                progress = True
    waiting = [stage for stage, pairs in enumerate(together) if following[stage] < len(pairs)]
    if waiting:
        raise DeadlockError(f"stages {', '.join(map(str, waiting))} wait for each other")
    return CompiledSchedule(tuple(operations))


def _pairs(steps: Steps) -> list[tuple[Step, ...]]:
    pairs: list[tuple[Step, ...]] = []
    remaining = iter(steps)
    for step in remaining:
        pairs.append((step, next(remaining)) if step.overlaps_next else (step,))
    return pairs


def _needs(step: Step, stage: int, route: Route, positions: dict[Route, dict[Place, int]]) -> list[tuple[Kind, int, Place]]:
    """The passes that a step waits for: the one before on its route, and of a backward pass its own forward."""
    assert step.kind in (Kind.forward, Kind.backward)
    if route not in positions:
        positions[route] = {place: position for position, place in enumerate(route)}
    here = Place(stage, step.chunk)
    position = positions[route][here]
    if step.kind is Kind.forward:
        return [] if position == 0 else [(Kind.forward, step.micro_batch, route[position - 1])]
    needs = [(Kind.forward, step.micro_batch, here)]
    if position < len(route) - 1:
        needs.append((Kind.backward, step.micro_batch, route[position + 1]))
    return needs


def _time_place(step: Step, stage: int, stages: int, chunks: int) -> int:
    return ((step.kind is Kind.backward) * stages + stage) * chunks + step.chunk
