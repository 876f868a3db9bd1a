"""How long ``orchestrator results`` takes for a thousand runs of a sweep, each with 600 logged steps, from a cold start.

``python -m tests.benchmarks.results_scale``
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.unit.results.made import make_point, make_run, make_sweep

RUNS = 1000
STEPS = 600
REPEATS = 5


def make(folder: Path) -> None:
    """A finished sweep over five learning rates and seven micro-batches, with repetitions: copies of one run, changed."""
    sweep = make_sweep(folder / "sweep")
    run = make_run(folder / "one", losses=[3 - step / 1000 for step in range(STEPS)], held_out=1.0)
    make_point(run, 0, "finished", metric=1.0)
    config, point = (json.loads((run / name).read_text()) for name in ("attempts/1/config.json", "point.json"))
    for number in range(RUNS):
        rate, micro = 10.0 ** -(number % 5), 2 ** (number % 7)
        config["optimizer"]["lr"], config["training"]["train_micro_batch_size_per_gpu"] = rate, micro
        words = [f"optimizer.lr={rate}", f"training.train_micro_batch_size_per_gpu={micro}"]
        point |= {"number": number, "overrides": words, "metric": 1.0 + number % 97}
        shutil.copytree(run, sweep / str(number))
        (sweep / str(number) / "attempts" / "1" / "config.json").write_text(json.dumps(config, indent=2))
        (sweep / str(number) / "point.json").write_text(json.dumps(point, indent=2))
    shutil.rmtree(run)


def main() -> None:
    """Print the median and the worst of several calls, in seconds of processor time."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        seconds = []
        for _ in range(REPEATS):
            before = os.times()
            subprocess.run([sys.executable, "-m", "orchestrator", "results", name], check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            spent = after.children_user + after.children_system - before.children_user - before.children_system
            seconds.append(spent)
    print(f"results of {RUNS} runs: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s ({REPEATS} calls)")


if __name__ == "__main__":
    main()
