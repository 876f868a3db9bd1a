"""The loss: the mean of the token cross entropies over the counting tokens of the **global** batch.

A mean of the micro-batches' means would weigh a token by how many others its micro-batch happens to hold. Here every
micro-batch contributes the sum over its tokens, divided once by the count of the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed
from torch import Tensor

from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.data.batches import IGNORED


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross entropies, fp32 scalar, over the labels that count; 0 if none does.

    ``logits`` is (rows, sequence_length, vocab_size), ``labels`` (rows, sequence_length) and shifted already.
    """
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def global_token_count(labels: Sequence[Tensor], group: torch.distributed.ProcessGroup) -> Tensor:
    """Labels that count in one step, over all its micro-batches and all data-parallel ranks; int64 scalar on the device."""
    count = torch.stack([(micro != IGNORED).sum() for micro in labels]).sum()
    torch.distributed.all_reduce(count, group=group)
    return count


def micro_batch_scale(token_count: Tensor, layout: ParallelLayout) -> Tensor:
    """What the sum of a micro-batch is multiplied with before DeepSpeed's backward pass.

    DeepSpeed divides by the accumulation steps and averages over the data-parallel ranks; both are undone here, which
    leaves the division by the token count. A step in which no label counts has a loss and gradients of zero.
    """
    return layout.data_parallel_size * layout.gradient_accumulation_steps / token_count.clamp(min=1)
