"""The benchmark's end: the ranks of two trainings, started together and let through their gates in turn.

On a CPU time and memory are measured in starts of their own: the C library keeps freed blocks in its heap, by chance of
their order some 5 % of the peak up or down, and telling it not to would change the time.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from orchestrator.units import KIB
from tests.benchmarks.statistics import RatioInterval, median_ratio

OURS, THEIRS = "tests.benchmarks.ours", "tests.benchmarks.hand_written"
DESCRIPTOR = "BENCHMARK_GATE"
ROOT = Path(__file__).parents[2]
ANSWER_SECONDS = 300.0
WARM_UP_STEPS = 3
MEMORY_STEPS = 6
RETURNS_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(64 * KIB)}
"""Makes the C library give blocks of this size back as soon as they are freed: the peak is then that of what is alive."""


class SideFailedError(RuntimeError):
    """A rank ended or did not answer; the message holds the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some steps as one rank saw them.

    ``peak_bytes`` is the highest memory of the process so far. On a CPU that is the resident set; ``base_bytes`` is what it
    was before anything was built, interpreter and libraries. Zero on a GPU, where tensors alone are counted.
    """

    seconds: float
    peak_bytes: int
    base_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A process of a side, the pipe to its gate, and its output."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    log: Path

    def answer(self) -> Block:
        """The steps that this rank reports next.

        Raises:
            SideFailedError: it ended, or does not answer.
        """
        try:
            if self.pipe.poll(ANSWER_SECONDS):
                return self.pipe.recv()
        except EOFError:
            pass
        raise SideFailedError(f"{self.log}:\n{self.log.read_text(errors='replace')[-3000:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The ranks of one training, all at their gates."""

    ranks: list[Rank]

    def run(self, steps: int) -> list[Block]:
        """Let every rank run ``steps`` steps and wait for them."""
        for rank in self.ranks:
            rank.pipe.send(steps)
        return self.wait()

    def wait(self) -> list[Block]:
        """What each rank reports when it is back at its gate, or has come to it first."""
        return [rank.answer() for rank in self.ranks]

    def stop(self) -> None:
        """End the training."""
        for rank in self.ranks:
            rank.pipe.send(0)
        for rank in self.ranks:
            rank.process.wait(timeout=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Two trainings compared. Seconds are medians of a step, bytes those of the rank that needs most."""

    pairs: int
    seconds: tuple[float, float]
    time_ratio: RatioInterval
    peak_bytes: tuple[int, int]
    own_bytes: tuple[int, int]

    @property
    def memory_ratio(self) -> float:
        """Our peak over theirs, without what a process has taken before it builds anything."""
        return self.own_bytes[0] / self.own_bytes[1]


@contextmanager
def started(module: str, attempt: Path, *, world_size: int, environment: Mapping[str, str]) -> Iterator[Side]:
    """Start the ranks of a side; they build while the caller goes on. None is left when the context ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": world_size, "LOCAL_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks: list[Rank] = []
    try:
        for rank in range(world_size):
            pipe, other_end = multiprocessing.Pipe()
            own = {"RANK": rank, "LOCAL_RANK": rank, DESCRIPTOR: other_end.fileno()}
            log = attempt / f"{module.rpartition('.')[2]}_rank_{rank}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", module, str(attempt)],
                    cwd=ROOT,
                    env={**os.environ, **environment, **{name: str(value) for name, value in {**shared, **own}.items()}},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[other_end.fileno()],
                )
            other_end.close()
            ranks.append(Rank(process=process, pipe=pipe, log=log))
        yield Side(ranks=ranks)
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()
            rank.pipe.close()


def in_turn(
    first: Side,
    second: Side,
    *,
    pairs: int,
    most_pairs: int | None = None,
    widest: float = math.inf,
    block_seconds: float = 1.0,
    alone: Callable[[Side], AbstractContextManager[object]] = nullcontext,
) -> list[tuple[float, float]]:
    """Seconds of a step of both sides, in pairs of random order; ``alone`` is entered around every block of a side.

    A block takes at least ``block_seconds``. After ``pairs`` pairs there are more, up to ``most_pairs``, while the interval of
    the ratio is wider than ``widest``: when it ends depends on the width alone, never on the ratio.
    """
    quickest = min(_step_seconds(side, WARM_UP_STEPS) for side in (first, second))
    quickest = min(quickest, *(_step_seconds(side, WARM_UP_STEPS) for side in (first, second)))
    steps = max(1, math.ceil(block_seconds / quickest))
    seconds: list[tuple[float, float]] = []
    order = random.Random(0)
    while len(seconds) < pairs or (
        len(seconds) < (most_pairs or pairs) and median_ratio(*zip(*seconds, strict=True)).width > widest
    ):
        is_first = order.random() < 0.5
        measured = []
        for side in (first, second) if is_first else (second, first):
            with alone(side):
                measured.append(_step_seconds(side, steps))
        seconds.append((measured[0], measured[1]) if is_first else (measured[1], measured[0]))
    return seconds


def compare(
    attempt: Path,
    *,
    world_size: int,
    environment: Mapping[str, str],
    pairs: int,
    most_pairs: int | None = None,
    widest: float = math.inf,
    block_seconds: float = 1.0,
) -> Measured:
    """Measure our worker and the script written by hand on the same attempt, as ``in_turn`` does.

    Raises:
        SideFailedError: a rank failed.
    """
    with _both(attempt, world_size=world_size, environment=environment) as (ours, theirs):
        seconds = in_turn(ours, theirs, pairs=pairs, most_pairs=most_pairs, widest=widest, block_seconds=block_seconds)
        last = [side.run(1) for side in (ours, theirs)]
    if environment.get("DS_ACCELERATOR") == "cpu":
        with _both(attempt, world_size=world_size, environment={**environment, **RETURNS_BLOCKS}) as sides:
            last = [side.run(MEMORY_STEPS) for side in sides]
    mine, other = zip(*seconds, strict=True)
    peaks = [max(block.peak_bytes for block in blocks) for blocks in last]
    own = [max(block.peak_bytes - block.base_bytes for block in blocks) for blocks in last]
    return Measured(
        pairs=len(seconds),
        seconds=(sorted(mine)[len(mine) // 2], sorted(other)[len(other) // 2]),
        time_ratio=median_ratio(mine, other),
        peak_bytes=(peaks[0], peaks[1]),
        own_bytes=(own[0], own[1]),
    )


@contextmanager
def _both(attempt: Path, *, world_size: int, environment: Mapping[str, str]) -> Iterator[tuple[Side, Side]]:
    """Our side and theirs, built and at their gates; both are stopped in the end."""
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(started(module, attempt, world_size=world_size, environment=environment))
            for module in (OURS, THEIRS)
        )
        for side in (ours, theirs):
            side.wait()
        yield ours, theirs
        for side in (ours, theirs):
            side.stop()


def _step_seconds(side: Side, steps: int) -> float:
    return max(block.seconds for block in side.run(steps)) / steps
