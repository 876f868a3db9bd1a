"""The held-out loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from orchestrator.worker.data.batches import IGNORED, BatchReader
from orchestrator.worker.loss import cross_entropy_sum


def held_out_loss(engine: Any, reader: BatchReader, *, max_sequences: int) -> float | None:
    """Mean cross entropy over the counting tokens of at most ``max_sequences`` held-out sequences, in nats.

    Every rank runs the same number of forward passes, which ZeRO-3 needs. None if there is no token to measure.
    """
    device = engine.device
    total = torch.zeros(2, dtype=torch.float64, device=device)
    engine.eval()
    with torch.no_grad():
        for batch in reader.held_out(max_sequences):
            labels = torch.from_numpy(batch.labels).to(device)
            logits = engine(input_ids=torch.from_numpy(batch.input_ids).to(device), use_cache=False).logits
            total[0] += cross_entropy_sum(logits, labels)
            total[1] += (labels != IGNORED).sum()
    engine.train()
    torch.distributed.all_reduce(total, group=engine.data_parallel_group)
    loss_sum, count = total.tolist()
    return loss_sum / count if count else None
