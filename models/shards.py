"""How a Hugging Face parameter is cut over the tensor-parallel ranks, and put together again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """``units`` things of ``unit_size`` elements each, one after the other: heads, columns of an MLP, rows of a vocabulary.

    Units are never cut. With fewer units than ranks, each is held by several ranks that are neighbours (key and value heads).
    """

    units: int
    unit_size: int = 1

    def share(self, rank: int, size: int) -> tuple[int, int]:
        """First unit and number of units of ``rank``; the last ranks get fewer, or none, if the units do not divide."""
        if self.units < size and size % self.units == 0:
            return rank // (size // self.units), 1
        most = -(-self.units // size)
        first = min(rank * most, self.units)
        return first, min(most, self.units - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The cut of one dimension of a Hugging Face tensor: each of its ``blocks`` is divided over the ranks by itself.

    A packed matrix (query, key and value in one) has several blocks. ``start`` is where the blocks begin along ``dim``: above
    0 for a parameter of ours that is only a part of Hugging Face's.
    """

    dim: int
    blocks: tuple[Block, ...]
    start: int = 0

    def pieces(self, rank: int, size: int) -> list[tuple[int, int]]:
        """Start and length along ``dim`` of what ``rank`` holds, block after block."""
        pieces, offset = [], self.start
        for block in self.blocks:
            first, count = block.share(rank, size)
            pieces.append((offset + first * block.unit_size, count * block.unit_size))
            offset += block.units * block.unit_size
        return pieces

    def local_length(self, size: int) -> int:
        """Length along ``dim`` of every rank's tensor; a rank with fewer units fills up with zeros."""
        return sum(block.share(0, size)[1] * block.unit_size for block in self.blocks)

    def sharers(self, size: int) -> int:
        """How many neighbouring ranks hold the same piece; above 1 with fewer units than ranks."""
        shared = {size // block.units if block.units < size and size % block.units == 0 else 1 for block in self.blocks}
        assert len(shared) == 1, "a parameter is shared as a whole or not at all"
        return shared.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class HfParameter:
    """What a parameter of ours is in Hugging Face's model: which tensor, of which full shape, and which part of it.

    ``transposed``: ours is (out, in) where Hugging Face's (GPT-2's ``Conv1D``) is (in, out). ``split`` is None for a
    parameter that every tensor-parallel rank holds whole.
    """

    name: str
    shape: tuple[int, ...]
    split: Split | None = None
    transposed: bool = False

    def local_shape(self, size: int) -> tuple[int, ...]:
        """Shape of our parameter on any of ``size`` ranks."""
        shape = list(self.shape)
        if self.split is not None:
            shape[self.split.dim] = self.split.local_length(size)
        return tuple(reversed(shape)) if self.transposed else tuple(shape)

    def cut(self, full: Tensor, *, rank: int, size: int) -> Tensor:
        """The part of ``full`` that ``rank`` holds, as our parameter lies in memory (a copy, contiguous)."""
        local = full
        if self.split is not None:
            dim = self.split.dim
            local = torch.cat([full.narrow(dim, start, length) for start, length in self.split.pieces(rank, size)], dim)
            local = _padded(local, dim, self.split.local_length(size))
        return (local.t() if self.transposed else local).contiguous()

    def put(self, local: Tensor, full: Tensor, *, rank: int, size: int) -> None:
        """Write what ``rank`` holds to its places in ``full``, which has Hugging Face's shape; padding is left out."""
        part = local.t() if self.transposed else local
        if self.split is None:
            full.copy_(part)
            return
        dim, offset = self.split.dim, 0
        for block, (start, length) in zip(self.split.blocks, self.split.pieces(rank, size), strict=True):
            full.narrow(dim, start, length).copy_(part.narrow(dim, offset, length))
            offset += block.share(0, size)[1] * block.unit_size


def describe(parameter: nn.Parameter, hf: HfParameter) -> None:
    """Note on ``parameter`` what it is in Hugging Face's model."""
    parameter.hf_parameter = hf


def hf_parameter(parameter: nn.Parameter) -> HfParameter:
    """What was noted on ``parameter``."""
    noted = parameter.hf_parameter
    assert isinstance(noted, HfParameter)
    return noted


def _padded(tensor: Tensor, dim: int, length: int) -> Tensor:
    missing = length - tensor.shape[dim]
    if missing == 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)
