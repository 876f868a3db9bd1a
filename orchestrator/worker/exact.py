"""The process behind ``estimate=exact``: ``python -m orchestrator.worker.exact REQUEST.json``.

Builds the engines of some ranks of an attempt, one after the other and each in a fork, with a process group that stands in
for all other ranks: its collectives return at once. Leaves ``result.json``, or ``failure_rank_0.json``, beside the request.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch._dynamo  # before the first zero.Init
import torch.distributed
from deepspeed.accelerator import get_accelerator
from torch.testing._internal.distributed.fake_pg import FakeStore

from orchestrator.run_dir import RESULT, read_json, write_json
from orchestrator.worker.attempt import WorkerAttempt, read_attempt
from orchestrator.worker.engine import build_engine
from orchestrator.worker.exact_activations import saved_activation_bytes
from orchestrator.worker.exact_count import EngineBytes, storages
from orchestrator.worker.failure import write_failure
from orchestrator.worker.parallel_groups import parallel_groups
from orchestrator.worker.progress import say

TOKENS = 8
"""Sequence length of the pass that brings the optimizer states into being; a multiple of every tensor-parallel size is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactRequest:
    """Which ranks of an attempt to build. Sizes are those of the run; the attempt's own batch is as small as it can be."""

    attempt: str
    ranks: list[int]
    micro_batch: int
    sequence_length: int
    in_flight: list[list[int]]
    """Of each rank: micro-batches whose activations each of its stages keeps at once."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the request named on the command line; the exit code is 0, 1 if it failed, 2 if none is named."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m orchestrator.worker.exact REQUEST.json", file=sys.stderr)
        return 2
    folder = Path(words[0]).parent
    try:
        request = ExactRequest(**read_json(Path(words[0])))
        write_json(folder / RESULT, {"ranks": count(request)})
    except BaseException as problem:
        if not list(folder.glob("failure_rank_*.json")):
            write_failure(folder, problem)
        traceback.print_exc()
        return 1
    return 0


def count(request: ExactRequest) -> list[dict[str, Any]]:
    """Components of each rank, in bytes.

    Raises:
        RuntimeError: a rank could not be built; the failure is beside the request.
    """
    warnings.simplefilter("ignore")
    # Muon's iteration is compiled otherwise, which takes longer than everything else.
    torch._dynamo.config.disable = True
    gc.collect()
    gc.freeze()
    counted = []
    for position, rank in enumerate(request.ranks):
        say(f"exact estimate: rank {rank}, {position + 1} of {len(request.ranks)}")
        counted.append({"rank": rank, "components": _in_fork(request, rank, request.in_flight[position])})
    return counted


def _in_fork(request: ExactRequest, rank: int, in_flight: Sequence[int]) -> dict[str, int]:
    """Process groups are global, so every rank has a process of its own."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _child(request, rank, in_flight, writable)
    os.close(writable)
    with os.fdopen(readable) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        reason = "memory ran out" if code == -signal.SIGKILL else f"exit code {code}"
        raise RuntimeError(f"rank {rank} could not be built: {reason}")
    components: dict[str, int] = json.loads(text)
    return components


def _child(request: ExactRequest, rank: int, in_flight: Sequence[int], writable: int) -> None:
    code = 0
    try:
        world_size = read_json(Path(request.attempt) / "plan.json")["layout"]["world_size"]
        components = components_of_rank(
            Path(request.attempt),
            rank,
            world_size=world_size,
            micro_batch=request.micro_batch,
            sequence_length=request.sequence_length,
            in_flight=in_flight,
        )
        os.write(writable, json.dumps(components).encode())
    except BaseException as problem:
        traceback.print_exc()
        write_failure(Path(request.attempt).parents[2], problem)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def components_of_rank(
    attempt_dir: Path, rank: int, *, world_size: int, micro_batch: int, sequence_length: int, in_flight: Sequence[int]
) -> dict[str, int]:
    """Bytes of each component of ``rank`` after a step, with its activations. The process is of no other use afterwards."""
    _pretend(rank, world_size)
    attempt = read_attempt(attempt_dir)
    baseline = storages()
    engine = build_engine(attempt, attempt.model, fill=lambda _hf, values: values.zero_())
    counter = EngineBytes(engine, baseline=baseline)
    passing = _watch(engine, counter)
    _take_step(engine, attempt)
    counted = {**counter.count(), **passing}
    if attempt.nvme_directory is not None:
        counted["nvme"] = sum(path.stat().st_size for path in attempt.nvme_directory.rglob("*.swp"))
    counted["activations"] = _activations(attempt, rank, micro_batch, sequence_length, in_flight)
    return counted


def _pretend(rank: int, world_size: int) -> None:
    """Join a process group of which no other rank exists."""
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29555}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.pop("LOCAL_SIZE", None)
    # DeepSpeed's CPU accelerator denies fp16, which nothing is computed in that matters here.
    get_accelerator().is_fp16_supported = lambda: True
    torch.distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)


def _watch(engine: Any, counter: EngineBytes) -> dict[str, int]:
    """Fills itself during a step with what is gone after it: gradients as the update begins, buckets as they are sent."""
    seen: dict[str, int] = {}
    optimizer = engine.optimizer

    def reads(component: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any, **options: Any) -> Any:
            seen[component] = max(seen.get(component, 0), counter.count().get(component, 0))
            return method(*arguments, **options)

        return read

    optimizer.step = reads("gradients", optimizer.step)
    if hasattr(optimizer, "average_tensor"):
        optimizer.average_tensor = reads("reduce_buckets", optimizer.average_tensor)
    return seen


def _take_step(engine: Any, attempt: WorkerAttempt) -> None:
    """One step on a few tokens: most optimizers make their states in it."""
    _trust_gradients(engine)
    length = TOKENS * attempt.layout.tensor_parallel_size
    tokens = torch.zeros(1, length, dtype=torch.int64)
    if attempt.layout.pipeline_parallel_size > 1:
        _step_of_stage(engine, attempt, tokens)
        return
    for _ in range(attempt.layout.gradient_accumulation_steps):
        engine.backward(engine.module.loss_fn(engine(tokens), tokens))
        engine.step()


def _trust_gradients(engine: Any) -> None:
    """What was gathered from ranks that do not exist is garbage, and a step with infinite gradients would be left out."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "check_overflow"):
        optimizer.check_overflow = lambda *_arguments, **_options: False
    if hasattr(optimizer, "scaled_global_norm"):
        optimizer.scaled_global_norm = lambda *_arguments, **_options: torch.ones(())
    if hasattr(optimizer, "_get_norm_groups"):
        optimizer._get_norm_groups = lambda: [torch.ones(())]


def _step_of_stage(engine: Any, attempt: WorkerAttempt, tokens: torch.Tensor) -> None:
    """A stage alone: nothing comes from its neighbours and nothing goes to them."""
    hidden = torch.zeros(*tokens.shape, attempt.model.hidden_size, dtype=next(engine.module.parameters()).dtype)
    first = engine.is_first_stage()
    output = engine.module(tokens if first else hidden.requires_grad_())
    output.float().sum().backward()
    if engine.using_bf16_optimizer:
        engine.optimizer.update_hp_grads(clear_lp_grads=False)
    engine._exec_reduce_grads()
    engine._exec_optimizer_step()


def _activations(attempt: WorkerAttempt, rank: int, micro_batch: int, sequence_length: int, in_flight: Sequence[int]) -> int:
    spec, config, layout = attempt.model, attempt.config, attempt.layout
    group = parallel_groups(layout, rank, spec, sequence_parallel=config.parallelism.sequence_parallel).tensor
    boundaries: list[int] = attempt.plan["partition"]["boundaries"]
    coordinate = layout.coordinate(rank).pipe
    held = [coordinate] if len(in_flight) == 1 else [coordinate, len(boundaries) - 2 - coordinate]
    return sum(
        count
        * saved_activation_bytes(
            config,
            spec,
            range(boundaries[stage], boundaries[stage + 1]),
            group,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
        )
        for stage, count in zip(held, in_flight, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
