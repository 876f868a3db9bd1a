"""Rows of several documents, and what a model makes of each document by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

ROWS = ((5, 1, 10, 8), (24,))
"""Lengths of the documents of each row: the second is one document, as long as a row."""


def positions_of(rows: Sequence[Sequence[int]]) -> Tensor:
    """Of each token in its document, (rows, tokens)."""
    return torch.stack([torch.cat([torch.arange(length) for length in lengths]) for lengths in rows])


def each_alone(model: Callable[[Tensor], Tensor], tokens: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """The logits of every document run by itself, put together as the rows of ``tokens``."""
    made = []
    for row, lengths in zip(tokens, rows, strict=True):
        borders = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        made.append(torch.cat([model(row[None, start:stop])[0] for start, stop in pairwise(borders)]))
    return torch.stack(made)
