"""How much of a pipeline's time its stages wait: measured around the passes that the engine runs.

The bubble is ``1 - busy / time``: ``busy`` is what a stage, on average, spends in forward and backward passes, and ``time``
lasts from the first forward pass of the first stage to its last backward pass, which is the last of the pipeline. Transfers
count as waiting, collectives within a pass as work; reductions and the update come after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine


class Clock(Protocol):
    """Marks moments of the device's work, and tells later how far they are apart."""

    def mark(self) -> Any:
        """The present moment, without waiting for it."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks; waits until the second has come."""


class HostClock:
    """Of a CPU, whose work is done when the call returns."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """Between two marks."""
        return end - start


class DeviceClock:
    """Of an accelerator, by events on its current stream: what is in front of a mark has been done when it is reached."""

    def mark(self) -> Any:
        """An event at this place of the stream."""
        event = get_accelerator().Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Between two events."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


@dataclass(slots=True)
class StageTimes:
    """Seconds of this stage, over all steps since they were last taken.

    The marks of a step are read when the next one begins: the training loop has waited for them by then.
    """

    clock: Clock
    _busy_seconds: float = field(default=0.0, init=False)
    _schedule_seconds: float = field(default=0.0, init=False)
    _start: Any = field(default=None, init=False)
    _passes: list[tuple[Any, Any]] = field(default_factory=list, init=False)

    def begin(self) -> None:
        """The schedule of a step begins."""
        self._read()
        self._start = self.clock.mark()

    @contextmanager
    def working(self) -> Iterator[None]:
        """A forward or backward pass."""
        start = self.clock.mark()
        yield
        self._passes.append((start, self.clock.mark()))

    def take(self) -> tuple[float, float]:
        """In passes, and from the beginning of each schedule to its last pass; both start anew."""
        self._read()
        taken = self._busy_seconds, self._schedule_seconds
        self._busy_seconds = self._schedule_seconds = 0.0
        return taken

    def _read(self) -> None:
        if self._passes:
            self._busy_seconds += sum(self.clock.seconds(*marks) for marks in self._passes)
            self._schedule_seconds += self.clock.seconds(self._start, self._passes[-1][1])
            self._passes.clear()


def stage_times() -> StageTimes:
    """Times by the clock of this process's device."""
    return StageTimes(HostClock() if get_accelerator().device_name() == "cpu" else DeviceClock())


def bubble_fraction(engine: Any) -> float | None:
    """The bubble of this rank's pipeline over the steps since it was last asked for; None without a pipeline.

    Every rank calls it: the stages tell each other two numbers.
    """
    if not isinstance(engine, PipelineEngine):
        return None
    own = torch.tensor(engine.stage_times.take(), dtype=torch.float64, device=engine.device)
    stages = [torch.empty_like(own) for _ in range(engine.num_stages)]
    torch.distributed.all_gather(stages, own, group=engine.grid.get_pipe_parallel_group())
    busy, schedule = torch.stack(stages).unbind(1)
    return float(1 - busy.mean() / schedule[0])
