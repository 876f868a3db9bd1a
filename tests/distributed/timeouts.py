"""How long collectives may take; runs in a rank, where DeepSpeed is."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed

from orchestrator.worker.attempt import read_attempt
from orchestrator.worker.engine import build_engine, start_distributed


def timeouts_of_the_engine(attempt_dir: Path) -> list[float]:
    """The limits of the groups that an engine communicates in, seconds: all ranks, and its data-parallel ones."""
    attempt = read_attempt(attempt_dir)
    start_distributed(attempt)
    engine = build_engine(attempt, attempt.model)
    optimizer_group = engine.optimizer.dp_process_group
    seconds = []
    for group in (torch.distributed.group.WORLD, engine.data_parallel_group, optimizer_group):
        backend = group._get_backend(torch.device("cpu"))
        seconds.append(backend.options._timeout.total_seconds())
    return seconds
