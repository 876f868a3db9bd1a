"""How fast the planner estimates: ``python -m tests.benchmarks.estimate_speed``.

Full estimates of GPT-3 175B on 1,024 GPUs (every stage, every host) and of the time of its step in a warm process, of one
layout again and again and of different ones in turn, and layouts by the hundred thousand in one call with arrays. Seconds of
processor time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, product

import numpy as np

from orchestrator.config.enums import RecomputePolicy
from orchestrator.config.load import load_config
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.cluster_spec import cluster_spec_from_config
from orchestrator.planning.cost.many import step_seconds_many
from orchestrator.planning.cost.step_time import step_time
from orchestrator.planning.cost.training_step import training_step
from orchestrator.planning.layout import ParallelLayout, layout_from_config
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.many import Layouts, estimate_many
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.planning.partition import Partition, partition_layers

REPETITIONS = 200
NUM_LAYOUTS = 100_000


def gpt3_estimator() -> tuple[Estimator, Partition]:
    """The experiment of GPT-3 175B on 1,024 GPUs: tensor 8 x pipeline 4 x data 32."""
    config = load_config(["experiment=gpt3_175b_3d_128_hosts"])
    spec = model_spec_from_config(config.model)
    cluster, _ = cluster_spec_from_config(config.cluster, hosts=None, machine_memory_bytes=2**40)
    assert cluster is not None
    layout, findings = layout_from_config(config, cluster.num_devices)
    assert layout is not None, findings
    estimator = Estimator(
        config=config,
        spec=spec,
        cluster=cluster,
        layout=layout,
        settings=resolve_settings(config),
        trainable_shares=None,
    )
    return estimator, partition_layers(spec, pipeline_parallel_size=layout.pipeline_parallel_size, method="uniform")


def random_layouts(count: int, *, seed: int = 0, most_stages: int = 16) -> Layouts:
    """Layouts of any sizes, legal or not."""
    random = np.random.default_rng(seed)
    policies = [policy.value for policy in (RecomputePolicy.none, RecomputePolicy.selective, RecomputePolicy.full)]
    stages = [size for size in (1, 2, 4, 8, 12, 16) if size <= most_stages]
    return Layouts(
        tensor_parallel_size=random.choice([1, 2, 4, 8], count),
        pipeline_parallel_size=random.choice(stages, count),
        data_parallel_size=random.integers(1, 257, count),
        train_micro_batch_size_per_gpu=random.integers(1, 17, count),
        gradient_accumulation_steps=random.integers(1, 65, count),
        zero_stage=random.integers(0, 4, count),
        recompute=random.choice(policies, count),
    )


def different_layouts(estimator: Estimator) -> Iterator[tuple[Estimator, Partition]]:
    """Layouts of ``estimator``'s model on its devices, for the same global batch."""
    devices, batch = estimator.cluster.num_devices, estimator.layout.train_batch_size
    for tensor, stages, micro_batch in product((1, 2, 4, 8), (2, 4, 8, 16), (1, 2, 4)):
        data = devices // (tensor * stages)
        layout = ParallelLayout(
            tensor_parallel_size=tensor,
            pipeline_parallel_size=stages,
            data_parallel_size=data,
            train_batch_size=batch,
            train_micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=max(1, batch // (data * micro_batch)),
        )
        partition = partition_layers(estimator.spec, pipeline_parallel_size=stages, method="uniform")
        yield replace(estimator, layout=layout), partition


def main() -> None:
    """Print the medians."""
    estimator, partition = gpt3_estimator()
    step = training_step(estimator)
    _print_one(f"memory of 1024 GPUs, {partition.num_coordinates} stages", lambda: estimator.estimate(partition))
    _print_one("time of a step", lambda: step_time(step, partition))
    _print_one("both", lambda: (estimator.estimate(partition), step_time(step, partition)))
    layouts = cycle(different_layouts(estimator))
    _print_one("both, of different layouts of 2 to 16 stages", lambda: _both(*next(layouts)))
    _print_many("memory", lambda layouts: estimate_many(estimator, layouts), NUM_LAYOUTS)
    _print_many("time", lambda layouts: step_seconds_many(estimator, layouts), NUM_LAYOUTS)
    for count in (NUM_LAYOUTS, 10 * NUM_LAYOUTS):
        _print_many("both", lambda layouts: (estimate_many(estimator, layouts), step_seconds_many(estimator, layouts)), count)


def _both(estimator: Estimator, partition: Partition) -> object:
    return estimator.estimate(partition), step_time(training_step(estimator), partition)


def _print_one(what: str, estimate: Callable[[], object]) -> None:
    seconds = []
    for _ in range(REPETITIONS + 10):
        start = time.process_time()
        estimate()
        seconds.append(time.process_time() - start)
    warm = sorted(seconds[10:])
    median, slow = statistics.median(warm), warm[int(0.9 * len(warm))]
    sys.stdout.write(f"{what}: median {1e3 * median:.3f} ms ({1 / median:,.0f}/s), 90 % under {1e3 * slow:.3f} ms\n")


def _print_many(what: str, estimate: Callable[[Layouts], object], count: int) -> None:
    layouts = random_layouts(count)
    taken = []
    for _ in range(4):
        start = time.process_time()
        estimate(layouts)
        taken.append(time.process_time() - start)
    median = statistics.median(taken[1:])
    sys.stdout.write(f"{what} of {count} layouts in one call: median {median:.3f} s ({count / median:,.0f}/s)\n")


if __name__ == "__main__":
    main()
