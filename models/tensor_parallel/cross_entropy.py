"""Cross entropy of logits whose vocabulary is divided over the tensor-parallel ranks, in the memory of the logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orchestrator.models.communication.collectives import all_gather
from orchestrator.models.tensor_parallel.group import TensorParallelGroup


def vocab_parallel_cross_entropy(
    logits_local: Tensor,
    labels: Tensor,
    *,
    group: TensorParallelGroup,
    vocab_size: int,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    chunk_tokens: int = 1024,
) -> Tensor:
    """The sum over the tokens that count, in fp32, equal on all ranks; what ``F.cross_entropy(reduction="sum")`` gives.

    The backward pass writes the gradient over the logits, so nobody may use them after it, and it can run only once.
    Besides the logits and a few numbers a token, memory is needed for ``chunk_tokens`` tokens at a time in fp32 (twice
    that in the backward pass with ``softcap``).

    Args:
        logits_local: (tokens, vocab_local), the columns from ``group.rank * vocab_local`` on, in any floating-point type.
            Columns past ``vocab_size`` are padding: they count for nothing and get a gradient of zero.
        labels: (tokens,), ids in the whole vocabulary or ``ignore_index``. A token with any other label makes the loss nan.
        group: the ranks that hold the vocabulary.
        vocab_size: classes, without padding.
        ignore_index: the label of a token that does not count.
        label_smoothing: share of the target that is spread evenly over all classes (Szegedy et al., 2016).
        softcap: logits l stand for softcap * tanh(l / softcap) (Gemma 2).
        chunk_tokens: how many tokens are worked on at a time.
    """
    assert group.size * logits_local.shape[1] >= vocab_size
    first = group.rank * logits_local.shape[1]
    options = _Options(
        group=group,
        first_column=first,
        num_columns=max(0, min(vocab_size - first, logits_local.shape[1])),
        vocab_size=vocab_size,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        softcap=softcap,
        chunk_tokens=chunk_tokens,
    )
    loss: Tensor = _CrossEntropy.apply(logits_local, labels, options)
    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    group: TensorParallelGroup
    first_column: int
    num_columns: int
    vocab_size: int
    ignore_index: int
    label_smoothing: float
    softcap: float | None
    chunk_tokens: int

    def columns(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Where the labels are among this rank's columns (any column if elsewhere), and whether they are."""
        columns = labels - self.first_column
        here = (columns >= 0) & (columns < self.num_columns)
        return columns.masked_fill_(~here, 0).unsqueeze(1), here

    def chunks(self, num_tokens: int) -> Iterator[slice]:
        for start in range(0, num_tokens, self.chunk_tokens):
            yield slice(start, min(start + self.chunk_tokens, num_tokens))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, options: _Options) -> Tensor:
        largest, total, target, mean = _combined(_local_statistics(logits, labels, options), options)
        known = (labels >= 0) & (labels < options.vocab_size) | (labels == options.ignore_index)
        total = total.masked_fill_(~known, torch.nan)
        smoothing = options.label_smoothing
        # Differences to the largest logit first: they are exact where it matters, for the likely classes.
        loss = total.log() + (1 - smoothing) * (largest - target) + smoothing * (largest - mean)
        ctx.options = options
        ctx.consumed = False
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(logits, labels, largest, total)
        return loss.masked_fill_(labels == options.ignore_index, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        if ctx.consumed:
            raise RuntimeError("the cross entropy has been differentiated before, and its logits now hold the gradient")
        ctx.consumed = True
        logits, labels, largest, total = ctx.saved_tensors
        gradient = logits.detach()
        _overwrite_with_gradient(gradient, labels, largest, total, upstream, ctx.options)
        return gradient, None, None


def _local_statistics(logits: Tensor, labels: Tensor, options: _Options) -> Tensor:
    """(4, tokens): of this rank's columns the largest logit, the sum of exp(logit - largest), the label's and the sum."""
    num_tokens = logits.shape[0]
    statistics = _working_memory(logits, 4, num_tokens)
    if options.num_columns == 0:
        statistics.zero_()[0] = torch.finfo(statistics.dtype).min
        return statistics
    memory = _working_memory(logits, min(num_tokens, options.chunk_tokens), options.num_columns)
    for chunk in options.chunks(num_tokens):
        columns, here = options.columns(labels[chunk])
        scratch = memory[: chunk.stop - chunk.start]
        scores = _capped(logits[chunk, : options.num_columns], options.softcap, scratch)
        largest, total, target, summed = statistics[:, chunk].unbind()
        # Finite also for a rank whose columns are all -inf, so that differences of maxima are defined.
        largest.copy_(scores.amax(1)).clamp_(min=torch.finfo(statistics.dtype).min)
        target.copy_(scores.gather(1, columns).squeeze(1)).masked_fill_(~here, 0)
        if options.label_smoothing:
            torch.sum(scores, 1, dtype=statistics.dtype, out=summed)
        torch.sum(torch.sub(scores, largest.unsqueeze(1), out=scratch).exp_(), 1, out=total)
    return statistics


def _combined(local: Tensor, options: _Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of all columns, each (tokens,): the largest logit, the sum of exp(logit - largest), the label's and the mean."""
    group = options.group
    gathered = local.unsqueeze(0)
    if group.size > 1:
        gathered = local.new_empty((group.size, *local.shape))
        all_gather(gathered.flatten(0, 1), local, group.process_group)
    largest_of_rank, total_of_rank, target, summed = gathered.unbind(1)
    largest = largest_of_rank.amax(0)
    total = (total_of_rank * (largest_of_rank - largest).exp()).sum(0)
    mean = summed.sum(0).div_(options.vocab_size) if options.label_smoothing else torch.zeros_like(largest)
    return largest, total, target.sum(0), mean


def _overwrite_with_gradient(
    logits: Tensor, labels: Tensor, largest: Tensor, total: Tensor, upstream: Tensor, options: _Options
) -> None:
    """upstream * (softmax - target distribution), times the slope of the cap; rounded once, at the end."""
    logits[:, options.num_columns :] = 0
    if options.num_columns == 0:
        return
    memory = _working_memory(logits, min(logits.shape[0], options.chunk_tokens), options.num_columns)
    weight = (labels != options.ignore_index) * upstream
    spread = options.label_smoothing / options.vocab_size
    for chunk in options.chunks(logits.shape[0]):
        columns, here = options.columns(labels[chunk])
        scratch = memory[: chunk.stop - chunk.start]
        own = logits[chunk, : options.num_columns]
        scores = _capped(own, options.softcap, scratch)
        gradient = torch.sub(scores, largest[chunk].unsqueeze(1), out=scratch).exp_()
        gradient.mul_((weight[chunk] / total[chunk]).unsqueeze(1))
        if spread:
            gradient.sub_((weight[chunk] * spread).unsqueeze(1))
        peak = weight[chunk] * here * (1 - options.label_smoothing)
        gradient.scatter_add_(1, columns, -peak.unsqueeze(1))
        if options.softcap is not None:
            tanh = own.to(gradient.dtype, copy=True).div_(options.softcap).tanh_()
            gradient.mul_(tanh.square_().neg_().add_(1))
            del tanh  # not into the next chunk
        own.copy_(gradient)


def _capped(logits: Tensor, softcap: float | None, scratch: Tensor) -> Tensor:
    """The logits, or in ``scratch`` their capped values."""
    if softcap is None:
        return logits
    return scratch.copy_(logits).div_(softcap).tanh_().mul_(softcap)


def _working_memory(logits: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
