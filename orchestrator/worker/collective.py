"""How fast the ranks of a run reduce: ``python -m orchestrator.worker.collective ATTEMPT_DIR``, one process a device.

All-reduces of one size, over the ranks of each host, of neighbouring hosts two by two, and of all. A host is in two pairs, each
with another neighbour, so that a slow one is told from the neighbour of a slow one. Rank 0 leaves ``result.json``.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from orchestrator.run_dir import COLLECTIVE, RESULT, read_json, write_json
from orchestrator.worker.failure import write_failure
from orchestrator.worker.start import main

_TIMEOUT = timedelta(minutes=5)
Groups: TypeAlias = Sequence[Sequence[int]]
"""Ranks of groups that do not meet."""


def run(attempt_dir: Path, *, stop: Event | None = None) -> None:  # noqa: ARG001 - there is nothing to save
    """Take this rank's part; what is to be reduced how often stands in ``collective.json`` of the attempt."""
    try:
        _measure(attempt_dir, read_json(attempt_dir / COLLECTIVE))
    except BaseException as problem:
        write_failure(attempt_dir, problem)
        raise


def _measure(attempt_dir: Path, request: Mapping[str, Any]) -> None:
    device = torch.device("cpu")
    if request["on_cuda"]:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if request["on_cuda"] else "gloo", timeout=_TIMEOUT)
    hosts = _ranks_of_hosts()
    tests: dict[str, Groups] = {
        "within": [ranks for ranks in hosts if len(ranks) > 1],
        "even_pairs": _pairs(hosts, 0),
        "odd_pairs": _pairs(hosts, 1),
        "all": [range(dist.get_world_size())],
    }
    buffer = torch.zeros(request["bytes"] // 4, dtype=torch.float32, device=device)
    own = {name: _seconds(groups, buffer, request) for name, groups in tests.items()}
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, own)
    if dist.get_rank() == 0:
        result: dict[str, Any] = {"status": "completed", "bytes": request["bytes"]}
        for name, groups in tests.items():
            result[name] = [_entry(hosts, ranks, [answers[rank][name] for rank in ranks], request["bytes"]) for ranks in groups]
        write_json(attempt_dir / RESULT, result)
    dist.destroy_process_group()


def _ranks_of_hosts() -> list[list[int]]:
    """The ranks of each host, by node rank."""
    nodes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, int(os.environ.get("CROSS_RANK", "0")))
    ranks: defaultdict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        ranks[node].append(rank)
    return [ranks[node] for node in sorted(ranks)]


def _pairs(hosts: Groups, first: int) -> Groups:
    """Neighbouring hosts two by two, from the host ``first`` on."""
    return [[*hosts[index], *hosts[index + 1]] for index in range(first, len(hosts) - 1, 2)]


def _seconds(groups: Groups, buffer: torch.Tensor, request: Mapping[str, Any]) -> float | None:
    """Seconds of one all-reduce in the group of this rank; ``None`` if it is in none."""
    # every rank takes part in making every group
    made = [(ranks, dist.new_group(list(ranks), timeout=_TIMEOUT)) for ranks in groups]
    own = next((group for ranks, group in made if dist.get_rank() in ranks), None)
    dist.barrier()
    if own is None:
        return None
    for _ in range(request["warmup"]):
        dist.all_reduce(buffer, group=own)
    _wait(buffer)
    started = time.perf_counter()
    for _ in range(request["iterations"]):
        dist.all_reduce(buffer, group=own)
    _wait(buffer)
    return (time.perf_counter() - started) / int(request["iterations"])


def _wait(buffer: torch.Tensor) -> None:
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)


def _entry(hosts: Groups, group: Sequence[int], seconds: Sequence[float], num_bytes: int) -> dict[str, Any]:
    """A group's figures. Bus bandwidth is that of NCCL's tests: bytes / seconds x 2 (n - 1) / n, of the slowest rank."""
    slowest, size = max(seconds), len(group)
    return {
        "nodes": [node for node, ranks in enumerate(hosts) if not set(ranks).isdisjoint(group)],
        "ranks": size,
        "seconds": slowest,
        "bus_bandwidth": num_bytes / slowest * 2 * (size - 1) / size,
    }


if __name__ == "__main__":
    main(load=lambda _attempt_dir: run)
