"""Token streams that are made in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Documents:
    """Documents joined to one stream; ``answers`` says from which of its tokens on the loss is on each."""

    documents: Sequence[Sequence[int]]
    answers: Sequence[int] | None = None

    @property
    def stream(self) -> np.ndarray:
        return np.array([token for document in self.documents for token in document], dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        return len(self.stream)

    @property
    def document_ends(self) -> np.ndarray:
        return np.cumsum([len(document) for document in self.documents], dtype=np.int64)

    @property
    def answer_starts(self) -> np.ndarray | None:
        return None if self.answers is None else np.array(self.answers, dtype=np.int32)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.stream[start:stop]


def numbered(sizes: Sequence[int], *, answers: Sequence[int] | None = None, first: int = 1) -> Documents:
    """Documents of ``sizes`` in whose stream every token says where it stands, counted from ``first``."""
    ends = np.cumsum(sizes) + first
    return Documents(
        [list(range(end - size, end)) for size, end in zip(sizes, ends.tolist(), strict=True)],
        answers,
    )
