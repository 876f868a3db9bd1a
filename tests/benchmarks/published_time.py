"""What the cost model says of a published run."""

from __future__ import annotations

from tests.benchmarks.published_throughput import Run


def predicted_seconds(run: Run) -> float | str:
    """Seconds of the row's step, or why there is no prediction."""
    peak = max(run.cluster.peak_flops.values(), default=1e14)
    flops = 8 * run.model.num_parameters * run.row.whole("global_batch") * run.row.whole("seq_len")
    return flops / peak / 0.5 / run.layout.world_size
