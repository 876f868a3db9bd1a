"""Ranks that are asked to stop, or that are stuck; runs in a rank, where torch is."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch.distributed

from orchestrator.worker import stop
from orchestrator.worker.lease import watch_lease
from orchestrator.worker.train import run


class AskedAfter(threading.Event):
    """Is set once ``steps`` steps have begun, and heard of by the last rank alone."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps
        self._hears = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1

    def is_set(self) -> bool:
        self._left -= 1
        return self._hears and self._left < 0


def run_and_stop(attempt_dir: Path, steps: int) -> None:
    """Train, and be asked to stop while step ``steps`` is in hand; the steps are short and the ranks ask before each."""
    stop.ASK_SECONDS = 0.0
    run(attempt_dir, stop=AskedAfter(steps))


def stuck_in_a_collective(attempt_dir: Path) -> None:
    """Rank 0 waits for rank 1, which sleeps."""
    rank = int(os.environ["RANK"])
    watch_lease(attempt_dir, rank=rank)
    torch.distributed.init_process_group("gloo")
    (attempt_dir / f"up_{rank}").touch()
    if rank == 1:
        time.sleep(600)
    torch.distributed.barrier()
