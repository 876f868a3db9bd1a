"""Our worker against DeepSpeed scripts written by hand: same Llama, batch and layout, in turn, in one session.

``python -m tests.benchmarks.training_overhead`` prints, a line a layout, the ratio of step times (ours / theirs) with its
95 % interval and the ratio of peak memory, and exits with 1 if one breaks its bound. What is measured of ours is the whole
loop of ``orchestrator.worker``: reading batches, step, metrics file. ZeRO-1, ZeRO-3 and pp2 must cost at most 2 % more than
the script, in time and in memory; tp2 must be as fast as DeepSpeed's AutoTP. A bound on time is broken if the whole interval
lies above it; an interval too wide to tell is a failure too.

The memory that is compared is the peak of a process less what interpreter and libraries had taken before, in a second start
in which the C library keeps no freed blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.units import format_bytes
from tests.benchmarks.sides import Measured, SideFailedError, compare
from tests.distributed.attempts import new_attempt

WORLD_SIZE = 2
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
WIDEST_INTERVAL = 0.06
FEWEST_PAIRS = 15
MODEL = (
    "model.vocab_size=4096",
    "model.hidden_size=384",
    "model.intermediate_size=1024",
    "model.num_hidden_layers=6",
    "model.num_attention_heads=6",
    "model.num_key_value_heads=2",
    "data.sequence_length=256",
    "data.synthetic_tokens=4353",
    "lr_scheduler=constant",
    "lr_scheduler.warmup_steps=0",
    "optimizer.lr=1e-3",
    "training.max_steps=1000000",
)
"""A Llama of 13 million parameters whose step takes some tenths of a second; 16 sequences learnt by heart, one held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A layout, and the largest ratios that are allowed; None where nothing is promised."""

    overrides: tuple[str, ...]
    most_time: float
    most_memory: float | None

    def broken_bounds(self, measured: Measured) -> list[str]:
        """What the measurement says against the promise."""
        broken = []
        if measured.pairs < FEWEST_PAIRS:
            broken.append(f"fewer than {FEWEST_PAIRS} pairs")
        if measured.time_ratio.width > WIDEST_INTERVAL:
            broken.append(f"interval wider than {WIDEST_INTERVAL}")
        if measured.time_ratio.lower > self.most_time:
            broken.append(f"slower than {self.most_time}")
        if self.most_memory is not None and measured.memory_ratio > self.most_memory:
            broken.append(f"more memory than {self.most_memory}")
        return broken


def batch(train: int, micro: int) -> tuple[str, str]:
    return f"training.train_batch_size={train}", f"training.train_micro_batch_size_per_gpu={micro}"


COMPARISONS = {
    "zero1": Comparison(overrides=("zero.stage=1", *batch(4, 2)), most_time=1.02, most_memory=1.02),
    "zero3": Comparison(overrides=("zero.stage=3", *batch(4, 2)), most_time=1.02, most_memory=1.02),
    "pp2": Comparison(
        overrides=("zero.stage=1", "parallelism.pipeline_parallel_size=2", *batch(4, 1)), most_time=1.02, most_memory=1.02
    ),
    "tp2": Comparison(
        overrides=("zero.stage=1", "parallelism.tensor_parallel_size=2", *batch(2, 2)), most_time=1.0, most_memory=None
    ),
}


def measure(comparison: Comparison, directory: Path, *, pairs: int, most_pairs: int) -> Measured:
    attempt = new_attempt(directory / "run", [*MODEL, *comparison.overrides], world_size=WORLD_SIZE)
    return compare(
        attempt.path,
        world_size=WORLD_SIZE,
        environment=ENVIRONMENT,
        pairs=pairs,
        most_pairs=most_pairs,
        widest=WIDEST_INTERVAL,
    )


def line(name: str, measured: Measured, broken: Sequence[str]) -> str:
    mine, theirs = measured.seconds
    peaks = " / ".join(format_bytes(own) for own in measured.own_bytes)
    return (
        f"{name:6} {mine:6.3f} s / {theirs:6.3f} s  time {measured.time_ratio}  {measured.pairs} pairs  "
        f"memory {peaks} = {measured.memory_ratio:.3f}  {'; '.join(broken) or 'ok'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS, help="fewest pairs of blocks")
    parser.add_argument("--most-pairs", type=int, default=60, help="pairs at most, while the interval is too wide")
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS))
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    arguments = parser.parse_args()
    print(f"ours / written by hand; load of this machine {os.getloadavg()[0]:.1f}", flush=True)
    results, failed = {}, False
    for name in arguments.only:
        comparison = COMPARISONS[name]
        with tempfile.TemporaryDirectory() as directory:
            try:
                measured = measure(
                    comparison, Path(directory), pairs=arguments.pairs, most_pairs=max(arguments.pairs, arguments.most_pairs)
                )
            except SideFailedError as problem:
                failed = True
                print(f"{name:6} failed: {problem}", flush=True)
                continue
        broken = comparison.broken_bounds(measured)
        failed = failed or bool(broken)
        results[name] = {**asdict(measured), "memory_ratio": measured.memory_ratio, "broken": broken}
        print(line(name, measured, broken), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
