"""A record that says whether other ranks have to wait while it is closed."""

from __future__ import annotations

from pathlib import Path

import torch.distributed

from orchestrator.tracking.recorder import RecorderTracker
from orchestrator.worker.train import run


def joined_while_closing(attempt_dir: Path) -> list[bool]:
    """Run a worker; for each time it closed its W&B record, whether it was still in the process group."""
    joined: list[bool] = []
    finish = RecorderTracker.finish

    def observed(tracker: RecorderTracker, *, failed: bool) -> None:
        joined.append(torch.distributed.is_initialized())
        finish(tracker, failed=failed)

    RecorderTracker.finish = observed  # type: ignore[method-assign]
    run(attempt_dir)
    return joined
