"""What W&B costs a training step when its server is down: a training that is tracked beside one that is not, in turn.

``python -m tests.benchmarks.tracking_overhead`` prints, a line a way of failing, the ratio of step times (tracked / untracked)
with its 95 % interval, and exits with 1 if a whole interval lies above 1.02 or is too wide to tell. The server is one on this
machine's loopback that refuses, hangs, answers 500, or takes the run and then none of its metrics. Every step is logged, and
W&B tries to get through for as long as is measured. While the untracked side runs, the recorder of the other is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.benchmarks.sides import OURS, Side, SideFailedError, in_turn, started
from tests.benchmarks.statistics import RatioInterval, median_ratio
from tests.benchmarks.training_overhead import ENVIRONMENT, FEWEST_PAIRS, MODEL, WIDEST_INTERVAL, WORLD_SIZE, batch
from tests.distributed.attempts import new_attempt
from tests.unit.tracking.server import HANGS, WORKS, Server, refusing, served

MOST_TIME = 1.02
LOGGED = (*MODEL, "zero.stage=1", *batch(4, 2), "training.log_every=1")
TRACKED = ("tracking.wandb=online", "tracking.init_timeout_seconds=100000")
SERVERS = {
    "refuses": None,
    "hangs": {"queries": HANGS},
    "answers 500": {"queries": "500"},
    "breaks": {"queries": WORKS, "uploads": "500"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Step times of a tracked and an untracked training: medians, and the ratio of the pairs."""

    pairs: int
    seconds: tuple[float, float]
    time_ratio: RatioInterval

    @property
    def broken_bounds(self) -> list[str]:
        """What the measurement says against the promise."""
        broken = [] if self.pairs >= FEWEST_PAIRS else [f"fewer than {FEWEST_PAIRS} pairs"]
        if self.time_ratio.width > WIDEST_INTERVAL:
            broken.append(f"interval wider than {WIDEST_INTERVAL}")
        if self.time_ratio.lower > MOST_TIME:
            broken.append(f"slower than {MOST_TIME}")
        return broken


def measure(server: dict[str, str] | None, directory: Path, *, pairs: int, most_pairs: int) -> Overhead:
    """Both trainings, started together, at a server of this kind.

    Raises:
        SideFailedError: a rank failed.
    """
    with refusing() if server is None else served(**server) as running:
        account = {"HOME": str(directory), **ENVIRONMENT, **(running.environment if isinstance(running, Server) else running)}
        attempts = [
            new_attempt(directory / name / "run", [*LOGGED, *options], world_size=WORLD_SIZE)
            for name, options in {"tracked": TRACKED, "untracked": ("tracking=none",)}.items()
        ]
        with (
            started(OURS, attempts[0].path, world_size=WORLD_SIZE, environment=account) as tracked,
            started(OURS, attempts[1].path, world_size=WORLD_SIZE, environment=account) as untracked,
        ):
            for side in (tracked, untracked):
                side.wait()
            seconds = in_turn(
                tracked,
                untracked,
                pairs=pairs,
                most_pairs=most_pairs,
                widest=WIDEST_INTERVAL,
                alone=lambda side: nullcontext() if side is tracked else _recorder_stopped(tracked),
            )
            assert _recorder(tracked), "the recorder has gone"
            for side in (tracked, untracked):
                side.stop()
    mine, other = zip(*seconds, strict=True)
    medians = sorted(mine)[len(mine) // 2], sorted(other)[len(other) // 2]
    return Overhead(pairs=len(seconds), seconds=medians, time_ratio=median_ratio(mine, other))


def _recorder(side: Side) -> list[psutil.Process]:
    """The recorder of a side, and W&B's service that it has started."""
    children = psutil.Process(side.ranks[0].process.pid).children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def _recorder_stopped(side: Side) -> Iterator[None]:
    """It would take its time from the other side, too, and so not be seen."""
    stopped = _recorder(side)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS, help="fewest pairs of blocks")
    parser.add_argument("--most-pairs", type=int, default=60, help="pairs at most, while the interval is too wide")
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    arguments = parser.parse_args()
    results, failed = {}, False
    for name in arguments.only:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            try:
                overhead = measure(
                    SERVERS[name], Path(directory), pairs=arguments.pairs, most_pairs=max(arguments.pairs, arguments.most_pairs)
                )
            except SideFailedError as problem:
                failed = True
                print(f"{name:12} failed: {problem}", file=sys.stderr, flush=True)
                continue
        broken = overhead.broken_bounds
        failed = failed or bool(broken)
        results[name] = {**asdict(overhead), "broken": broken}
        if not arguments.json:
            tracked, untracked = overhead.seconds
            verdict = "; ".join(broken) or "ok"
            times = f"{tracked:6.3f} s / {untracked:6.3f} s  time {overhead.time_ratio}"
            print(f"{name:12} {times}  {overhead.pairs} pairs  {verdict}", flush=True)
    if arguments.json:
        print(json.dumps({"load": os.getloadavg()[0], "results": results}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
