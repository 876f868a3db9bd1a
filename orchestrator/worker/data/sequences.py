"""One source's sequences: which tokens a sequence holds, which of them count in the loss, and where documents begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.tokens.order import SampleOrder
from orchestrator.tokens.windows import Windows

IGNORED = -100
"""The label of a position that does not count."""

PADDING = 0
"""The token of a position behind the last document. Its label is ignored, and nothing before it can attend to it."""

IGNORE_KEY = 2


class TokenStream(Protocol):
    """The joined documents of a source: what is used here of ``TokenStore``."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens from ``start`` up to ``stop``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sequence: int64 arrays of shape (sequence_length,). The labels are shifted already."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSource:
    """A source of sequences and their order. ``document_ends`` are there where answers or resets need them."""

    name: str
    tokens: TokenStream
    document_ends: NDArray[np.int64] | None = None
    answer_starts: NDArray[np.int32] | None = None
    windows: Windows
    order: SampleOrder
    sequence_length: int
    vocab_size: int
    """Rows of the model's embedding."""
    reset_at_documents: bool = False
    ignore_fraction: float = 0.0
    """Share of the labels that is ignored at random."""

    def row(self, sequence: int) -> Row:
        """Sequence number ``sequence``.

        Raises:
            ValueError: it has a token that the model's embedding has no row for, which a GPU would end the process for.
        """
        starts, stops = self.windows.bounds(np.array([sequence]))
        start, stop = int(starts[0]), int(stops[0])
        size = stop - start
        window = np.full(self.sequence_length + 1, PADDING, dtype=np.int64)
        window[:size] = self.tokens.read(start, stop)
        if not 0 <= int(window.min()) <= int(window.max()) < self.vocab_size:
            within = f"tokens {start} to {stop - 1} of {self.name} reach from {window.min()} to {window.max()}"
            raise ValueError(f"{within}, and model.vocab_size is {self.vocab_size}")
        labels = window[1:].copy()
        labels[size - 1 :] = IGNORED
        labels[: size - 1][~self._counts(start, stop)] = IGNORED
        if self.ignore_fraction > 0:
            # Drawn from the sequence's own number: the mask belongs to the data, not to the rank that reads it.
            generator = np.random.default_rng([IGNORE_KEY, self.order.seed, sequence])
            labels[generator.random(self.sequence_length) < self.ignore_fraction] = IGNORED
        positions = self._positions(start, stop) if self.reset_at_documents else None
        return Row(input_ids=window[:-1], labels=labels, positions=positions)

    def _counts(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether the loss is on each token from ``start + 1`` up to ``stop``, which its predecessors predict."""
        counts = np.ones(stop - start - 1, dtype=np.bool_)
        if self.answer_starts is None and not self.reset_at_documents:
            return counts
        documents, begins = self._documents(start, stop)
        within = np.arange(start, stop) - begins
        if self.answer_starts is not None:
            counts &= (within >= self.answer_starts[documents])[1:]
        if self.reset_at_documents:
            # A document's first token has nothing before it that it could be predicted from.
            counts &= within[1:] > 0
        return counts

    def _positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """Of each input: its distance to the first token of its document in this sequence. Padding counts on from 0."""
        _, begins = self._documents(start, stop)
        own = np.arange(start, stop) - np.maximum(begins, start)
        return np.concatenate([own, np.arange(self.sequence_length)])[: self.sequence_length]

    def _documents(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The document of each token from ``start`` up to ``stop``, and where in the stream that document begins."""
        ends = self.document_ends
        assert ends is not None
        first, last = (int(np.searchsorted(ends, token, side="right")) for token in (start, stop - 1))
        near = np.asarray(ends[max(0, first - 1) : last], dtype=np.int64)
        if first == 0:
            near = np.concatenate([[0], near])
        # ``near`` are the begins of the documents from ``first`` up to ``last``.
        inside = np.searchsorted(near, np.arange(start, stop), side="right") - 1
        return first + inside, near[inside]
