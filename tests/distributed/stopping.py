"""Ranks that are asked to stop, are stuck, or wait to be killed; runs in a rank, where torch is."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import torch.distributed

from orchestrator.worker import loop, stop
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


def run_slowly_at_the_end(attempt_dir: Path, step: int) -> None:
    """Train; from step ``step`` on each takes so long that whoever waits for its checkpoint can kill the rank in time."""
    training_step, trained = loop.training_step, 0

    def slow_step(*arguments: Any) -> Any:
        nonlocal trained
        trained += 1
        if trained > step:
            time.sleep(2)
        return training_step(*arguments)

    loop.training_step = slow_step
    run(attempt_dir)


def stuck_in_a_collective(attempt_dir: Path) -> None:
    """Rank 0 waits for rank 1, which sleeps."""
    rank = int(os.environ["RANK"])
    watch_lease(attempt_dir, rank=rank)
    torch.distributed.init_process_group("gloo")
    (attempt_dir / f"up_{rank}").touch()
    if rank == 1:
        time.sleep(600)
    torch.distributed.barrier()
