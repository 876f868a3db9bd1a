"""Cold ``orchestrator validate`` and refusals against ``python -c "import deepspeed"``, in turn.

``python -m tests.benchmarks.cold_start`` prints the ratio of wall times, pair by pair: median, minimum and maximum.
Times differ between machines; the ratio hardly does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

BASELINE = [sys.executable, "-c", "import deepspeed"]
COMMANDS = {
    "validate (demo)": ["validate"],
    "validate GPT-3 175B on 1024 devices": ["validate", "experiment=gpt3_175b_3d_128_hosts", "data.path=/data"],
    "three bad overrides": ["validate", "zero.stge=3", "training.max_steps=soon", "model=llama_9"],
    "launch refused: Llama-2-70B on one device": [
        "launch",
        "model=llama_2_70b",
        "cluster=dgx_a100_80",
        "cluster.devices_per_host=1",
    ],
}


def seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, capture_output=True, env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=False, timeout=300)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    pairs = parser.parse_args().pairs
    seconds(BASELINE)
    for name, words in COMMANDS.items():
        command = [sys.executable, "-m", "orchestrator", *words]
        seconds(command)
        measured = [(seconds(command), seconds(BASELINE)) for _ in range(pairs)]
        ratios = sorted(ours / theirs for ours, theirs in measured)
        ours, theirs = (statistics.median(times) for times in zip(*measured, strict=True))
        spread = f"min {ratios[0]:.3f}, max {ratios[-1]:.3f}, {pairs} pairs"
        print(f"{name}: {ours:.2f} s against {theirs:.2f} s, ratio {statistics.median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    main()
