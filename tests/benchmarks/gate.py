"""The rank's end of a benchmark: a gate before every training step, which the benchmark opens for some steps at a time.

Two trainings that are compared live in processes of their own, all started before the first measurement. While one runs its
steps, the other waits at its gate without using a processor, so both can be measured in turn at millisecond distance, and
neither shares memory, process groups or a random state with the other.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

from deepspeed.accelerator import get_accelerator

from orchestrator.units import KIB
from orchestrator.worker.memory import memory_peak
from tests.benchmarks.sides import DESCRIPTOR, Block


class Stopped(BaseException):
    """The benchmark wants no more steps. Not an ``Exception``: a training must not take it for a failure of its own."""


class Gate:
    """Made once everything is imported and nothing is built; ``step_begins`` is called at the start of every step."""

    def __init__(self) -> None:
        self._benchmark = Connection(int(os.environ[DESCRIPTOR]))
        self._base_bytes = _resident_bytes() if get_accelerator().device_name() == "cpu" else 0
        self._steps_left = 0
        self._started: float | None = None

    def step_begins(self) -> None:
        """Let the step pass if the gate is open; else report the steps that have passed and wait.

        Raises:
            Stopped: there is nothing more to do.
        """
        if self._steps_left == 0:
            self._report()
            self._steps_left = self._benchmark.recv()
            if self._steps_left == 0:
                raise Stopped
            self._started = time.perf_counter()
        self._steps_left -= 1

    def _report(self) -> None:
        get_accelerator().synchronize()
        seconds = 0.0 if self._started is None else time.perf_counter() - self._started
        block = Block(seconds=seconds, peak_bytes=memory_peak().peak_bytes, base_bytes=self._base_bytes)
        self._benchmark.send(block)


def _resident_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * KIB
