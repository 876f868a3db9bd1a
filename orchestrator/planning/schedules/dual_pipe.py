"""DualPipe and DualPipeV: two streams meet on every stage, so that the forward of one overlaps the backward of the other.

Source: DeepSeek-V3 technical report (2024), section 3.2.1, and github.com/deepseek-ai/DualPipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from orchestrator.planning.schedules.steps import Kind, Step, Steps


def dual_pipe_steps(*, num_stages: int, micro_batches: int, stage: int) -> Steps:
    """Two copies of the model in opposite directions: half the micro-batches enter at the first stage, half at the last.

    Chunk 0 is the copy whose first layers are on stage 0, chunk 1 the other. The bubble is ``(p / 2 - 1) (F&B + B - 3 W)``
    when the forward and the two halves of the backward take the same time, F&B that of an overlapped pair and B that of a
    whole backward pass; every stage holds ``p + 1`` micro-batches. ``num_stages`` and ``micro_batches`` must be even, and
    ``micro_batches`` at least ``2 x num_stages``.
    """
    half = num_stages // 2
    down = stage < half
    order = _Order(
        num_ranks=half,
        micro_batches=micro_batches // 2,
        rank=stage if down else num_stages - 1 - stage,
        split_backward=True,
    )
    # Towards the middle is phase 0 for either half of the stages; for the second that is the upward copy.
    if down:
        return tuple(_moved(step, chunk=step.chunk, offset=step.chunk * micro_batches // 2) for step in order.steps())
    return tuple(_moved(step, chunk=1 - step.chunk, offset=(1 - step.chunk) * micro_batches // 2) for step in order.steps())


def dual_pipe_v_steps(*, num_stages: int, micro_batches: int, stage: int) -> Steps:
    """One copy of the model folded in a V: stage ``s`` holds chunk ``s`` and, as its chunk 1, chunk ``2 p - 1 - s``.

    This is the form that DeepSpeed runs: weight gradients stay inside the backward pass, and a pair receives all it needs
    before it starts and sends all it made after it ends. Where the backward takes twice the forward ``F`` of a whole stage,
    that leaves ``(5 p - 6) F / 2`` idle (``p > 1``), against ``3 (p - 1) F`` of 1F1B. Every stage holds ``p + 1/2``
    micro-batches. ``micro_batches`` must be at least ``2 x num_stages``.
    """
    return _Order(num_ranks=num_stages, micro_batches=micro_batches, rank=stage, split_backward=False).steps()


def _moved(step: Step, *, chunk: int, offset: int) -> Step:
    return replace(step, chunk=chunk, micro_batch=step.micro_batch + offset)


class _Order:
    """Writes down the eight sections of the schedule of a rank; ``chunk`` is 0 on the way to the turn and 1 after it."""

    def __init__(self, *, num_ranks: int, micro_batches: int, rank: int, split_backward: bool) -> None:
        self.to_turn = num_ranks - rank - 1
        self.to_start = rank + 1
        self.main = micro_batches - 2 * num_ranks + rank + 1
        self.split_backward = split_backward
        self.written: list[Step] = []
        self.seen = {(kind, chunk): 0 for kind in (Kind.forward, Kind.backward) for chunk in (0, 1)}
        self.delayed: deque[Step] = deque()

    def steps(self) -> Steps:
        """All steps of the rank, in order."""
        self._repeat(2 * self.to_turn, lambda: self._forward(0))
        self._repeat(self.to_start, lambda: self._forward(0), lambda: self._forward(1))
        self._repeat(self.to_turn, lambda: self._backward(1, split=True), self._weight, lambda: self._forward(1))
        self._main()
        self._repeat(self.to_turn, lambda: self._backward(1), lambda: self._pair(1, 0))
        self._drain()
        return tuple(self.written)

    def _main(self) -> None:
        for index in range(self.main):
            # At the turn the first backward needs the forward just before it, so the two cannot overlap.
            self._pair(0, 1, overlap=self.to_turn > 0 or index > 0)
            self._pair(1, 0)

    def _drain(self) -> None:
        """The last backward passes. Half of them split, so that weight gradients fill the gaps of those that follow."""
        passes = 2 * self.to_start
        for index in range(passes):
            self._backward(1 - index % 2, split=index >= passes - self.to_start)
        self._repeat(self.to_turn, self._weight, lambda: self._backward(0, split=True))
        self._repeat(self.to_start, self._weight)

    @staticmethod
    def _repeat(times: int, *actions: Callable[[], None]) -> None:
        for _ in range(times):
            for action in actions:
                action()

    def _next(self, kind: Kind, chunk: int) -> Step:
        micro_batch = self.seen[kind, chunk]
        self.seen[kind, chunk] += 1
        return Step(kind=kind, micro_batch=micro_batch, chunk=chunk)

    def _forward(self, chunk: int) -> None:
        self.written.append(self._next(Kind.forward, chunk))

    def _backward(self, chunk: int, *, split: bool = False) -> None:
        step = self._next(Kind.backward, chunk)
        if split and self.split_backward:
            self.delayed.append(replace(step, kind=Kind.backward_weight))
            step = replace(step, kind=Kind.backward_input)
        self.written.append(step)

    def _weight(self) -> None:
        """The weight gradient that has waited longest; nothing where backward passes are whole."""
        if self.delayed:
            self.written.append(self.delayed.popleft())

    def _pair(self, forward_chunk: int, backward_chunk: int, *, overlap: bool = True) -> None:
        self.written.append(replace(self._next(Kind.forward, forward_chunk), overlaps_next=overlap))
        self._backward(backward_chunk)
