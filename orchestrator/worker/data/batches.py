"""Which sequences a rank trains on at each step, whatever the layout: the order depends on the seed and the data alone.

The token file is cut into sequences of ``sequence_length`` inputs; sequence ``i`` predicts the tokens
``i * sequence_length + 1`` to ``(i + 1) * sequence_length``, so no token is the target of two sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.data.permutation import permute

IGNORED = -100
"""The label of a position that does not count."""

HELD_OUT_KEY = 0
TRAINING_KEY = 1
IGNORE_KEY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch: int64 arrays of shape (rows, sequence_length). The labels are shifted already."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64] | None = None
    """Distance of each token to the first of its document in this row: attention and positions start anew at each 0.
    None: a row is one document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The endless order of training sequences, and the held-out ones, as sequence numbers of the token file.

    Held-out sequences are spread over the whole file and do not depend on the seed, so runs with different seeds are
    measured on the same text.
    """

    num_sequences: int
    num_held_out: int
    seed: int

    @property
    def num_training(self) -> int:
        """Sequences of one epoch."""
        return self.num_sequences - self.num_held_out

    def training(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences at ``positions`` of the training order, which counts on over the epochs."""
        sequences = np.empty_like(positions)
        epochs = positions // self.num_training
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            within = positions[chosen] % self.num_training
            key = (TRAINING_KEY, self.seed, int(epoch))
            sequences[chosen] = self._numbers(self.num_held_out + permute(within, size=self.num_training, key=key))
        return sequences

    def held_out(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The held-out sequences at ``positions``, each below ``num_held_out``."""
        return self._numbers(positions)

    def _numbers(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return permute(places, size=self.num_sequences, key=(HELD_OUT_KEY,))


def sample_order(*, num_tokens: int, sequence_length: int, held_out_fraction: float, seed: int) -> SampleOrder:
    """Divide a token file into training and held-out sequences.

    Raises:
        ConfigurationError: there are too few tokens for one training sequence.
    """
    num_sequences = max(0, num_tokens - 1) // sequence_length
    num_held_out = round(num_sequences * held_out_fraction)
    if held_out_fraction > 0:
        num_held_out = max(1, num_held_out)
    if num_sequences - num_held_out < 1:
        message = (
            f"{num_tokens} tokens make {num_sequences} sequences of {sequence_length}, of which {num_held_out} are held out"
        )
        raise ConfigurationError(
            [error("data-size", "data.sequence_length", message, "use more text, shorter sequences, or hold out less")]
        )
    return SampleOrder(num_sequences=num_sequences, num_held_out=num_held_out, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReader:
    """Reads the micro-batches of one rank. Ranks that share a data-parallel coordinate read the same."""

    tokens: NDArray[Any]
    order: SampleOrder
    layout: ParallelLayout
    rank: int
    sequence_length: int
    ignore_fraction: float = 0.0

    def training_step(self, consumed_samples: int) -> list[Batch]:
        """This rank's micro-batches of the step that begins after ``consumed_samples`` sequences.

        Position ``(micro * dp + data rank) * rows + row`` of the global batch is row ``row`` of micro-batch ``micro``.
        """
        rows = self.layout.train_micro_batch_size_per_gpu
        first = consumed_samples + self._data_rank * rows
        stride = self.layout.data_parallel_size * rows
        return [
            self._batch(self.order.training(first + micro * stride + np.arange(rows, dtype=np.int64)))
            for micro in range(self.layout.gradient_accumulation_steps)
        ]

    def held_out(self, max_sequences: int) -> Iterator[Batch]:
        """This rank's share of the first ``max_sequences`` held-out sequences.

        Every rank gets the same number of batches; rows beyond the last sequence have all labels ignored.
        """
        rows = self.layout.train_micro_batch_size_per_gpu
        stride = self.layout.data_parallel_size * rows
        num_sequences = min(max_sequences, self.order.num_held_out)
        for start in range(self._data_rank * rows, self._data_rank * rows + num_sequences, stride):
            positions = start + np.arange(rows, dtype=np.int64)
            batch = self._batch(self.order.held_out(np.minimum(positions, num_sequences - 1)))
            batch.labels[positions >= num_sequences] = IGNORED
            yield batch

    @property
    def _data_rank(self) -> int:
        return self.layout.coordinate(self.rank).data

    def _batch(self, sequences: NDArray[np.int64]) -> Batch:
        length = self.sequence_length
        windows = [np.asarray(self.tokens[start : start + length + 1], dtype=np.int64) for start in sequences * length]
        window = np.stack(windows)
        labels = window[:, 1:].copy()
        if self.ignore_fraction > 0:
            for row, sequence in enumerate(sequences):
                # Drawn from the sequence's own number: the mask belongs to the data, not to the rank that reads it.
                generator = np.random.default_rng([IGNORE_KEY, self.order.seed, int(sequence)])
                labels[row, generator.random(length) < self.ignore_fraction] = IGNORED
        return Batch(input_ids=window[:, :-1], labels=labels)
