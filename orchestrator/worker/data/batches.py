"""Which sequences a rank trains on at each step, whatever the layout: the order depends on the seed and the data alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from orchestrator.planning.layout import ParallelLayout
from orchestrator.tokens.blend import Blend
from orchestrator.worker.data.sequences import IGNORED, Row, SequenceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch: int64 arrays of shape (rows, sequence_length). The labels are shifted already."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64] | None = None
    """Distance of each token to the first of its document in this row: attention and positions start anew at each 0.
    None: a row is one document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReader:
    """Reads the micro-batches of one rank. Ranks that share a data-parallel coordinate read the same."""

    sources: Sequence[SequenceSource]
    blend: Blend
    """Which of the sources each position of the training order reads."""
    layout: ParallelLayout
    rank: int
    evaluation: Mapping[str, SequenceSource] = field(default_factory=dict)
    """Further sets, held out as a whole."""

    @property
    def held_out_names(self) -> tuple[str, ...]:
        """The names of the further held-out sets."""
        return tuple(self.evaluation)

    def training_step(self, consumed_samples: int) -> list[Batch]:
        """This rank's micro-batches of the step that begins after ``consumed_samples`` sequences.

        Position ``(micro * dp + data rank) * rows + row`` of the global batch is row ``row`` of micro-batch ``micro``.
        """
        rows = self.layout.train_micro_batch_size_per_gpu
        first = consumed_samples + self._data_rank * rows
        stride = self.layout.data_parallel_size * rows
        return [
            _batch(self._training_rows(first + micro * stride + np.arange(rows, dtype=np.int64)))
            for micro in range(self.layout.gradient_accumulation_steps)
        ]

    def held_out(self, max_sequences: int, name: str | None = None) -> Iterator[Batch]:
        """This rank's share of the first ``max_sequences`` held-out sequences, or of those of the further set ``name``.

        Those of a mixture stand in the proportions of its weights; a source that has too few repeats them.
        Every rank gets the same number of batches; rows beyond the last sequence have all labels ignored.
        """
        sources = self.sources if name is None else [self.evaluation[name]]
        blend = self.blend if name is None else Blend(parts=(1,))
        num_sequences = min(max_sequences, sum(source.order.num_held_out for source in sources))
        rows = self.layout.train_micro_batch_size_per_gpu
        stride = self.layout.data_parallel_size * rows
        for start in range(self._data_rank * rows, self._data_rank * rows + num_sequences, stride):
            positions = start + np.arange(rows, dtype=np.int64)
            batch = _batch(_held_out_rows(sources, blend, np.minimum(positions, num_sequences - 1)))
            batch.labels[positions >= num_sequences] = IGNORED
            yield batch

    @property
    def _data_rank(self) -> int:
        return self.layout.coordinate(self.rank).data

    def _training_rows(self, positions: NDArray[np.int64]) -> list[Row]:
        numbers, earlier = self.blend.places(positions)
        sequences = np.empty_like(positions)
        for number in np.unique(numbers):
            chosen = numbers == number
            sequences[chosen] = self.sources[number].order.training(earlier[chosen])
        return [self.sources[number].row(int(sequence)) for number, sequence in zip(numbers, sequences, strict=True)]


def _held_out_rows(sources: Sequence[SequenceSource], blend: Blend, positions: NDArray[np.int64]) -> list[Row]:
    rows = []
    for number, earlier in zip(*blend.places(positions), strict=True):
        source = sources[number]
        place = np.array([earlier % source.order.num_held_out])
        rows.append(source.row(int(source.order.held_out(place)[0])))
    return rows


def _batch(rows: Sequence[Row]) -> Batch:
    positions = [row.positions for row in rows if row.positions is not None]
    return Batch(
        input_ids=np.stack([row.input_ids for row in rows]),
        labels=np.stack([row.labels for row in rows]),
        positions=np.stack(positions) if positions else None,
    )
