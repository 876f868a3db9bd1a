"""Runs a schedule on paper: when each step of each stage starts and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.planning.schedules.steps import Kind, Place, Route, Step, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """Times of one micro-batch in one chunk of the model, in seconds or any other unit."""

    forward: float
    backward_input: float
    backward_weight: float
    overlapped: float | None = None
    """A forward and a whole backward that run together; by default as long as one after the other."""

    def of(self, kind: Kind) -> float:
        """Time of a pass of this kind on its own."""
        match kind:
            case Kind.forward:
                return self.forward
            case Kind.backward_input:
                return self.backward_input
            case Kind.backward_weight:
                return self.backward_weight
            case Kind.backward:
                return self.backward_input + self.backward_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """When a step ran."""

    step: Step
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The steps of every stage, in the order they ran."""

    stages: tuple[tuple[TimedStep, ...], ...]

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max(timed.end for stage in self.stages for timed in stage)

    def busy_seconds(self, stage: int) -> float:
        """How long a stage computes. The two steps of an overlapped pair take their time once."""
        return sum(timed.end - timed.start for timed in self.stages[stage] if not timed.step.overlaps_next)

    @property
    def bubble_fraction(self) -> float:
        """Share of the stages' time in which they compute nothing."""
        busy = sum(self.busy_seconds(stage) for stage in range(len(self.stages)))
        return 1 - busy / (len(self.stages) * self.seconds)


class DeadlockError(ValueError):
    """Stages wait for each other for ever; the message says what each of them waits to run."""


def replay(
    stages: Sequence[Steps], routes: Sequence[Route], seconds: Sequence[Sequence[PassSeconds]], *, transfer_seconds: float = 0
) -> Timeline:
    """Run the steps of every stage in their order, each as early as what it needs allows.

    ``routes`` has the way of every micro-batch; ``seconds`` is indexed by stage and chunk. A forward needs the forward at the
    place before; a backward needs that of the place after, at the last place its own forward; a weight gradient its own
    ``backward_input``. What comes from another stage arrives ``transfer_seconds`` later, without keeping either stage busy.

    Raises:
        DeadlockError: no order of the stages lets all steps run.
    """
    return _Replay(stages, routes, seconds, transfer_seconds).run()


class _Replay:
    def __init__(
        self,
        stages: Sequence[Steps],
        routes: Sequence[Route],
        seconds: Sequence[Sequence[PassSeconds]],
        transfer_seconds: float,
    ) -> None:
        self.stages = stages
        self.routes = routes
        self.positions = [{place: position for position, place in enumerate(route)} for route in routes]
        self.seconds = seconds
        self.transfer_seconds = transfer_seconds
        self.timed: list[list[TimedStep]] = [[] for _ in stages]
        self.forward_ends: dict[tuple[int, Place], float] = {}
        self.backward_ends: dict[tuple[int, Place], float] = {}

    def run(self) -> Timeline:
        while not self._finished():
            progress = [self._advance(stage) for stage in range(len(self.stages))]
            if not any(progress):
                raise DeadlockError(self._waiting())
        return Timeline(stages=tuple(map(tuple, self.timed)))

    def _finished(self) -> bool:
        return all(len(timed) == len(steps) for timed, steps in zip(self.timed, self.stages, strict=True))

    def _waiting(self) -> str:
        waiting = [
            f"stage {stage} waits to run {steps[len(self.timed[stage])]}"
            for stage, steps in enumerate(self.stages)
            if len(self.timed[stage]) < len(steps)
        ]
        return "; ".join(waiting)

    def _advance(self, stage: int) -> bool:
        """Run what the stage can run now; whether that was anything."""
        steps, timed = self.stages[stage], self.timed[stage]
        before = len(timed)
        while len(timed) < len(steps):
            first = steps[len(timed)]
            together = steps[len(timed) : len(timed) + 2] if first.overlaps_next else (first,)
            arrivals = [self._arrival(stage, step) for step in together]
            known = [arrival for arrival in arrivals if arrival is not None]
            if len(known) < len(arrivals):
                break
            start = max(timed[-1].end if timed else 0.0, *known)
            end = start + self._duration(stage, together)
            for step in together:
                timed.append(TimedStep(step=step, start=start, end=end))
                self._record(stage, step, end)
        return len(timed) > before

    def _duration(self, stage: int, together: Steps) -> float:
        first = self.seconds[stage][together[0].chunk]
        if len(together) == 2 and first.overlapped is not None:
            return first.overlapped
        return sum(self.seconds[stage][step.chunk].of(step.kind) for step in together)

    def _record(self, stage: int, step: Step, end: float) -> None:
        key = (step.micro_batch, Place(stage, step.chunk))
        if step.kind is Kind.forward:
            self.forward_ends[key] = end
        elif step.kind is not Kind.backward_weight:
            self.backward_ends[key] = end

    def _arrival(self, stage: int, step: Step) -> float | None:
        """When what the step needs is on the stage; None while that is not known."""
        here = Place(stage, step.chunk)
        if step.kind is Kind.backward_weight:
            return self.backward_ends.get((step.micro_batch, here))
        route = self.routes[step.micro_batch]
        position = self.positions[step.micro_batch][here]
        if step.kind is Kind.forward:
            return 0.0 if position == 0 else self._from(route[position - 1], here, step.micro_batch, self.forward_ends)
        if position == len(route) - 1:
            return self.forward_ends.get((step.micro_batch, here))
        own_forward = self.forward_ends.get((step.micro_batch, here))
        gradient = self._from(route[position + 1], here, step.micro_batch, self.backward_ends)
        return None if own_forward is None or gradient is None else max(own_forward, gradient)

    def _from(self, there: Place, here: Place, micro_batch: int, ends: dict[tuple[int, Place], float]) -> float | None:
        end = ends.get((micro_batch, there))
        return None if end is None else end + self.transfer_seconds * (there.stage != here.stage)
