"""The loss: the mean of the token cross entropies over the counting tokens of the **global** batch.

A mean of the micro-batches' means would weigh a token by how many others its micro-batch happens to hold. Here every
micro-batch contributes the sum over its tokens, divided once by the count of the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor

from orchestrator.models.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.data.sequences import IGNORED


@dataclass(slots=True, kw_only=True)
class TokenLoss:
    """Logits of this rank and labels of a micro-batch to its loss, fp32 scalar: the sum over its tokens, times ``scale``.

    ``scale`` belongs to one step and is set before it. Labels are smoothed in training only: a held-out loss is the plain
    cross entropy. DeepSpeed's pipeline calls it on the last stage.
    """

    group: TensorParallelGroup
    vocab_size: int
    label_smoothing: float
    softcap: float | None
    scale: Tensor | float = 1.0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """``logits`` is (rows, sequence_length, vocab_local), ``labels`` (rows, sequence_length) and shifted already."""
        total = vocab_parallel_cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            group=self.group,
            vocab_size=self.vocab_size,
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing if torch.is_grad_enabled() else 0.0,
            softcap=self.softcap,
        )
        return total * self.scale


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
