"""A worker as one of several ranks, without the compiler that DeepSpeed runs Muon's iteration through."""

from __future__ import annotations

from pathlib import Path

import torch._dynamo

from orchestrator.worker.train import run


def run_uncompiled(attempt_dir: Path) -> None:
    """``run``; compiling takes longer than the training of a test."""
    torch._dynamo.config.disable = True
    run(attempt_dir)
