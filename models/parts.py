"""The layers of a model between which a pipeline may be cut: embedding, positions, blocks, final norm, head.

What passes from one to the next is one tensor (micro_batch, sequence, hidden_size), with sequence parallelism
(micro_batch, sequence/size, hidden_size). Where attention starts anew at each document, positions and blocks take the place of
each token in its document too, (micro_batch, sequence), whole on every rank. The class names are those that
``parallelism.partition_method=type:REGEX`` sees, with the Hugging Face class in the place of ``DecoderBlock``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from orchestrator.models.attention_inputs import AttentionInputs
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.tensor_parallel.layers import ColumnParallelLinear, VocabParallelEmbedding
from orchestrator.models.tensor_parallel.mappings import enter_region


class TokenEmbedding(VocabParallelEmbedding):
    """The token embedding, and where it is tied also the output head: one module, so that its weight is one parameter."""

    def __init__(
        self,
        rows_local: int,
        hidden_size: int,
        first_row: int,
        *,
        group: TensorParallelGroup,
        padding_id: int | None,
        scale: float | None,
        dropout: float,
    ) -> None:
        super().__init__(rows_local, hidden_size, first_row, group=group, padding_id=padding_id)
        self.scale = scale
        self.dropout = dropout

    def forward(self, x: Tensor, *, as_head: bool = False) -> Tensor:
        """Token ids (micro_batch, sequence) to hidden states; ``as_head``: hidden states to this rank's logits."""
        if as_head:
            return F.linear(enter_region(x, self.group), self.weight)
        hidden = super().forward(x)
        if self.scale is not None:
            # The factor is rounded to the weight's format first, as Hugging Face does.
            hidden = hidden * torch.tensor(self.scale, dtype=hidden.dtype, device="cpu").item()
        return F.dropout(hidden, self.dropout, self.training) if self.dropout > 0 else hidden


class PositionEmbedding(nn.Module):
    """Learned positions, added to the token embedding; every tensor-parallel rank holds all of them."""

    def __init__(self, num_positions: int, hidden_size: int, *, group: TensorParallelGroup, dropout: float) -> None:
        super().__init__()
        self.group = group
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(num_positions, hidden_size))

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Hidden states with their positions, which count on through the row if none are given."""
        length = hidden.shape[1]
        first = self.group.rank * length if self.group.sequence_parallel else 0
        if positions is None:
            hidden = hidden + self.weight[first : first + length]
        else:
            hidden = hidden + F.embedding(positions[:, first : first + length], self.weight)
        return F.dropout(hidden, self.dropout, self.training) if self.dropout > 0 else hidden


class DecoderBlock(nn.Module):
    """A Hugging Face decoder layer whose matrices are this rank's."""

    def __init__(self, block: nn.Module, index: int, inputs: AttentionInputs, *, group: TensorParallelGroup) -> None:
        super().__init__()
        self.block = block
        self.index = index
        self.inputs = inputs
        self.group = group

    def forward(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Hidden states to hidden states."""
        length = hidden.shape[1] * (self.group.size if self.group.sequence_parallel else 1)
        result: Tensor = self.block(hidden, **self.inputs.of_block(self.index, hidden, length, positions))
        return result


class FinalNorm(nn.Module):
    """The norm before the head."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states to hidden states."""
        result: Tensor = self.norm(hidden)
        return result


class OutputHead(ColumnParallelLinear):
    """An untied head: hidden states to this rank's columns of the logits, (micro_batch, sequence, vocab_local)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """This rank's logits of the whole sequence."""
        return F.linear(enter_region(hidden, self.group), self.weight)


def tied_head(embedding: TokenEmbedding, hidden: Tensor) -> Tensor:
    """The head of a model whose output matrix is its token embedding."""
    logits: Tensor = embedding(hidden, as_head=True)
    return logits
