"""How fast the best plan is found: ``python -m tests.benchmarks.plan_speed``.

The search of ``orchestrator plan`` in a warm process, on one core: Llama 2 7B on 8 GPUs and GPT-3 175B on 1,024.
"""

from __future__ import annotations

import statistics
import sys
import time

from orchestrator.config.load import load_config
from orchestrator.planning.search.search import search

REPETITIONS = 5
MACHINE_MEMORY_BYTES = 2**40
PROBLEMS = {
    "Llama 2 7B on 8 A100": (
        "model=llama_2_7b",
        "cluster=dgx_a100_80",
        "training=default",
        "training.train_batch_size=512",
        "data.sequence_length=4096",
    ),
    "GPT-3 175B on 1,024 A100": ("experiment=gpt3_175b_3d_128_hosts", "data.path=/data"),
}


def main() -> None:
    """Print the medians."""
    for name, words in PROBLEMS.items():
        config = load_config(words)
        times: dict[bool, list[float]] = {True: [], False: []}
        for best_only in (True, False):
            for _ in range(REPETITIONS + 1):
                start = time.perf_counter()
                result = search(config, hosts=None, machine_memory_bytes=MACHINE_MEMORY_BYTES, best_only=best_only)
                times[best_only].append(time.perf_counter() - start)
        assert result.best is not None
        choice = result.best.choice
        split = f"t{choice.tensor_parallel_size} p{choice.pipeline_parallel_size} d{choice.data_parallel_size}"
        best, all_of_it = (statistics.median(times[best_only][1:]) for best_only in (True, False))
        took = f"the best, proven, in {best:.2f} s; with alternatives and front {all_of_it:.2f} s (median of {REPETITIONS})"
        effort = f"{result.num_choices} bounds, {result.num_planned} plans"
        sys.stdout.write(f"{name}: {took}; {effort}; best {split}, {result.best.time.step_seconds:.1f} s a step\n")


if __name__ == "__main__":
    main()
