"""fp16 on the CPU, which computes in it although DeepSpeed's accelerator says that it cannot."""

from __future__ import annotations

from pathlib import Path

from deepspeed.accelerator import get_accelerator

from orchestrator.worker.train import run


def run_with_fp16(attempt_dir: Path) -> None:
    """Run a worker whose device claims to know fp16."""
    get_accelerator().is_fp16_supported = lambda: True
    run(attempt_dir)
