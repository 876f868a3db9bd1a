"""Linear layers and an embedding of which every tensor-parallel rank holds a part.

Weights are made uninitialised on the current default device, in the default type; no random number is drawn.
With a group of one each is what ``nn.Linear`` or ``nn.Embedding`` is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.tensor_parallel.mappings import leave_region


class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are divided over the ranks: x (..., in_features) to (..., out_features_local).

    It communicates nothing; ``enter_region`` has to be called on its input, once for all layers that share it.
    """

    def __init__(self, in_features: int, out_features_local: int, *, bias: bool, group: TensorParallelGroup) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features_local = out_features_local
        self.group = group
        self.weight = nn.Parameter(torch.empty(out_features_local, in_features))
        self.bias = nn.Parameter(torch.empty(out_features_local)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """This rank's columns of the output."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes, as in the printed model."""
        return (
            f"in_features={self.in_features}, out_features_local={self.out_features_local}, "
            f"bias={self.bias is not None}, ranks={self.group.size}"
        )


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are divided over the ranks; it leaves the region.

    x (micro_batch, sequence, in_features_local) to (micro_batch, sequence, out_features), with sequence parallelism to
    (micro_batch, sequence/size, out_features). Every rank holds the whole bias and adds it after the sum.
    """

    def __init__(self, in_features_local: int, out_features: int, *, bias: bool, group: TensorParallelGroup) -> None:
        super().__init__()
        self.in_features_local = in_features_local
        self.out_features = out_features
        self.group = group
        self.weight = nn.Parameter(torch.empty(out_features, in_features_local))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The whole output."""
        if self.group.size == 1:
            return F.linear(x, self.weight, self.bias)
        total = leave_region(F.linear(x, self.weight), self.group)
        # In place: no backward pass needs the sum without the bias.
        return total if self.bias is None else total.add_(self.bias)

    def extra_repr(self) -> str:
        """The sizes, as in the printed model."""
        return (
            f"in_features_local={self.in_features_local}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, ranks={self.group.size}"
        )


class VocabParallelEmbedding(nn.Module):
    """An embedding whose rows are divided over the ranks; this one holds ``rows_local`` of them from ``first_row`` on.

    Token ids (micro_batch, sequence) to (micro_batch, sequence, hidden_size), with sequence parallelism to
    (micro_batch, sequence/size, hidden_size). Rows past the end of the vocabulary are padding and never looked up. The row of
    the token ``padding_id`` gets no gradient from its look-ups, as in ``nn.Embedding``.
    """

    def __init__(
        self,
        rows_local: int,
        hidden_size: int,
        first_row: int,
        *,
        group: TensorParallelGroup,
        padding_id: int | None = None,
    ) -> None:
        super().__init__()
        here = padding_id is not None and first_row <= padding_id < first_row + rows_local
        self.padding_row = padding_id - first_row if padding_id is not None and here else None
        self.rows_local = rows_local
        self.hidden_size = hidden_size
        self.first_row = first_row
        self.group = group
        self.weight = nn.Parameter(torch.empty(rows_local, hidden_size))

    def forward(self, token_ids: Tensor) -> Tensor:
        """Each token's row, from whichever rank holds it."""
        if self.group.size == 1:
            return F.embedding(token_ids, self.weight, self.padding_row)
        rows = token_ids - self.first_row
        elsewhere = (rows < 0) | (rows >= self.rows_local)
        found = F.embedding(rows.masked_fill_(elsewhere, 0), self.weight, self.padding_row)
        return leave_region(found.masked_fill_(elsewhere.unsqueeze(-1), 0), self.group)

    def extra_repr(self) -> str:
        """The sizes, as in the printed model."""
        return (
            f"rows_local={self.rows_local}, hidden_size={self.hidden_size}, first_row={self.first_row}, ranks={self.group.size}"
        )
