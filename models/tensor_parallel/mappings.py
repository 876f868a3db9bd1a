"""What tensor-parallel ranks tell each other on the way into and out of the layers they share.

A region is a part of a block (attention, MLP) whose matrices are cut: the input is whole on every rank, the outputs are
partial sums. Every mapping is a pair of a forward communication and the backward one that belongs to it (Shoeybi et al.,
"Megatron-LM", 2019; Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, for the
sequence). All are the identity for a group of one. Activations are (micro_batch, sequence, hidden), the sequence is
dimension 1, and "own share" means piece ``group.rank`` of ``group.size`` equal pieces of it.

Gloo knows the tensor collectives for every floating-point type too, so there is one path for all backends.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from orchestrator.models.communication.collectives import all_gather, reduce_scatter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup


def copy_to_region(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """``x`` itself; its gradient is summed over the group."""
    return x if group.size == 1 else _apply(_CopyToRegion, x, group)


def reduce_from_region(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """``x`` summed over the group; the gradient goes back as it is.

    The sum takes the memory of ``x``, which is meant to be the fresh output of a matrix product: nobody may need its
    values afterwards (autograd refuses a backward pass that does).
    """
    return x if group.size == 1 else _apply(_ReduceFromRegion, x, group)


def gather_sequence(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """(micro_batch, sequence/size, ...) to (micro_batch, sequence, ...); the gradient is summed and the own share kept."""
    return x if group.size == 1 else _apply(_GatherSequence, x, group)


def reduce_scatter_sequence(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """(micro_batch, sequence, ...) summed over the group, of which the own share is kept; the gradient is gathered.

    The size of the group must divide the sequence.
    """
    return x if group.size == 1 else _apply(_ReduceScatterSequence, x, group)


def enter_region(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """The input of a region, whole on every rank."""
    return gather_sequence(x, group) if group.sequence_parallel else copy_to_region(x, group)


def leave_region(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """The output of a region from the ranks' partial sums; takes the memory of ``x`` as ``reduce_from_region`` does."""
    return reduce_scatter_sequence(x, group) if group.sequence_parallel else reduce_from_region(x, group)


def sum_gradient(parameter: nn.Parameter, process_group: ProcessGroup | None) -> None:
    """From now on sum the gradient of ``parameter`` over the group in every backward pass, before it is accumulated.

    For a parameter that several ranks hold alike while each sees only a part of what it is used for. Nothing happens
    to a frozen parameter, nor without a group.
    """
    if process_group is None or not parameter.requires_grad:
        return

    def summed(gradient: Tensor) -> Tensor:
        return _summed(gradient, process_group)

    parameter.register_hook(summed)


def _apply(function: type[torch.autograd.Function], x: Tensor, group: TensorParallelGroup) -> Tensor:
    result: Tensor = function.apply(x, group)
    return result


class _CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorParallelGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group.process_group), None


class _ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorParallelGroup) -> Tensor:
        if not x.is_contiguous():
            return _summed(x, group.process_group)
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group.process_group)
        return x

    @staticmethod
    @once_differentiable
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorParallelGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduce_scattered(gradient, ctx.group), None


class _ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorParallelGroup) -> Tensor:
        ctx.group = group
        return _reduce_scattered(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradient, ctx.group), None


def _summed(x: Tensor, process_group: ProcessGroup | None) -> Tensor:
    """The sum in new memory: autograd may have given the same gradient to someone else as well."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=process_group)
    return total


def _gathered(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """The collective puts the ranks' pieces one after the other, which for one sequence is already the result."""
    micro_batch, length, *rest = x.shape
    pieces = x.new_empty((group.size * micro_batch, length, *rest))
    all_gather(pieces, x.contiguous(), group.process_group)
    pieces = pieces.view(group.size, micro_batch, length, *rest)
    return pieces.transpose(0, 1).reshape(micro_batch, group.size * length, *rest)


def _reduce_scattered(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """The collective wants the ranks' pieces one after the other, as they lie already if there is one sequence."""
    micro_batch, _, *rest = x.shape
    length = _share_length(x, group)
    pieces = x.reshape(micro_batch, group.size, length, *rest).transpose(0, 1).contiguous()
    own = x.new_empty((micro_batch, length, *rest))
    reduce_scatter(own, pieces.view(group.size * micro_batch, length, *rest), group.process_group)
    return own


def _share_length(x: Tensor, group: TensorParallelGroup) -> int:
    sequence: int = x.shape[1]
    length, remainder = divmod(sequence, group.size)
    assert remainder == 0, f"{group.size} ranks cannot share a sequence of {sequence}"
    return length
