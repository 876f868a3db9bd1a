"""Trainings that find no memory in their second step; runs in a rank, where torch is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from orchestrator.worker import loop
from orchestrator.worker.train import run

CUDA_SAYS = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.14 GiB of which 1.21 GiB is free. "
    "Including non-PyTorch memory, this process has 77.92 GiB memory in use."
)


def run_out_of(place: str, attempt_dir: Path) -> None:
    """Train until a step asks the host, for real, or a device, in CUDA's words, for more than there is."""
    training_step, steps = loop.training_step, iter(range(10))

    def step(*arguments: Any) -> Any:
        if next(steps) == 1:
            if place == "device":
                raise torch.OutOfMemoryError(CUDA_SAYS)
            torch.empty(2**50, dtype=torch.uint8)
        return training_step(*arguments)

    loop.training_step = step
    run(attempt_dir)
