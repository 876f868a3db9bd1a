"""Which stretch of the joined documents each sequence is: index arithmetic alone, without a token being read.

A sequence of ``sequence_length`` inputs is made of up to ``sequence_length + 1`` tokens of the stream: token ``i`` of it
predicts token ``i + 1``. Both kinds of windows are contiguous stretches, so a reader treats them alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

DOCUMENTS_AT_ONCE = 2**20


class Windows(Protocol):
    """The sequences of a token stream."""

    @property
    def num_sequences(self) -> int:
        """How many there are."""

    @property
    def num_targets(self) -> int:
        """Tokens that some sequence predicts, before labels are ignored."""

    def bounds(self, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First token of each of ``sequences`` in the stream, and the one behind its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWindows:
    """Cut without regard to documents: sequence ``i`` predicts the tokens ``i * length + 1`` to ``(i + 1) * length``.

    So no token is the target of two sequences, and only the rest of the stream is left out.
    """

    num_tokens: int
    sequence_length: int

    @property
    def num_sequences(self) -> int:
        """Whole sequences in the stream."""
        return max(0, self.num_tokens - 1) // self.sequence_length

    @property
    def num_targets(self) -> int:
        """All positions of all sequences."""
        return self.num_sequences * self.sequence_length

    def bounds(self, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``Windows.bounds``; each is ``sequence_length + 1`` tokens long."""
        starts = sequences * self.sequence_length
        return starts, starts + self.sequence_length + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWindows:
    """Sequences of whole documents. ``table`` is int64 of shape (2, sequences): their starts and stops, maybe on disk."""

    table: NDArray[np.int64]

    @property
    def num_sequences(self) -> int:
        """How many there are."""
        return int(self.table.shape[1])

    @property
    def num_targets(self) -> int:
        """Tokens with a predecessor in their sequence; the other positions are padding."""
        return int((self.table[1] - self.table[0] - 1).sum())

    def bounds(self, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See ``Windows.bounds``."""
        return self.table[0][sequences], self.table[1][sequences]


def packed_table(document_ends: NDArray[np.int64], *, sequence_length: int) -> NDArray[np.int64]:
    """The table of ``PackedWindows``: documents are put into a sequence in their order while they fit.

    A document of more than ``sequence_length + 1`` tokens is cut into full sequences that overlap by one token, so that each
    of its tokens but the first is predicted once; what remains of it shares a sequence with the next documents.

    ``document_ends`` (int64, ascending) are the ends of the documents in the stream. A document costs about 0.2 microseconds
    with its sequence; memory does not grow with the documents, only with the table of the sequences.
    """
    tables: list[NDArray[np.int64]] = []
    pending = np.empty((2, 0), dtype=np.int64)
    for first in range(0, len(document_ends), DOCUMENTS_AT_ONCE):
        ends = np.asarray(document_ends[first : first + DOCUMENTS_AT_ONCE], dtype=np.int64)
        begin = int(document_ends[first - 1]) if first else 0
        pieces = np.concatenate([pending, _pieces(begin, ends, sequence_length)], axis=1)
        table = _filled(pieces, capacity=sequence_length + 1)
        # The last sequence may have room for the documents that come next: it goes on as one piece.
        table, pending = table[:, :-1], table[:, -1:]
        tables.append(table)
    return np.concatenate([*tables, pending], axis=1)


def _pieces(begin: int, ends: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Starts and stops of what the documents are cut into, each at most ``length + 1`` tokens; empty documents leave none."""
    starts = np.concatenate([[begin], ends[:-1]])
    not_empty = ends > starts
    starts, ends = starts[not_empty], ends[not_empty]
    counts = np.maximum(1, -(-(ends - starts - 1) // length))
    if len(counts) == 0 or counts.max() == 1:
        return np.stack([starts, ends])
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    piece_starts = np.repeat(starts, counts) + number * length
    return np.stack([piece_starts, np.minimum(piece_starts + length + 1, np.repeat(ends, counts))])


def _filled(pieces: NDArray[np.int64], *, capacity: int) -> NDArray[np.int64]:
    """Starts and stops of the sequences that hold ``pieces`` in their order, as many in each as fit."""
    sizes = pieces[1] - pieces[0]
    filled = np.cumsum(sizes)
    # For each piece: the first that does not fit into the sequence that it begins.
    following = np.searchsorted(filled, filled - sizes + capacity, side="right").tolist()
    firsts: list[int] = []
    piece = 0
    while piece < len(following):
        firsts.append(piece)
        piece = following[piece]
    chosen = np.array(firsts, dtype=np.int64)
    lasts = np.append(chosen[1:], len(following))[: len(chosen)] - 1
    return np.stack([pieces[0][chosen], pieces[1][lasts]])
