"""Which sequences a step trains on: the same whatever the layout, none of them held out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from orchestrator.planning.layout import ParallelLayout
from orchestrator.tokens.blend import Blend
from orchestrator.tokens.order import sample_order, size_findings
from orchestrator.tokens.windows import StreamWindows
from orchestrator.worker.data.batches import Batch, BatchReader
from orchestrator.worker.data.sequences import IGNORED, SequenceSource
from tests.unit.tokens.in_memory import numbered

LENGTH = 8
BATCH = 12
TOKENS = numbered([1001])  # 125 sequences, and each token says where it stands
ALONE = Blend(parts=(1,))


def layout_of(*, dp: int, micro: int, tp: int = 1) -> ParallelLayout:
    return ParallelLayout(
        tensor_parallel_size=tp,
        pipeline_parallel_size=1,
        data_parallel_size=dp,
        train_batch_size=BATCH,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=BATCH // (dp * micro),
    )


def source_of(*, held_out_fraction: float = 0.1, ignore_fraction: float = 0.0, seed: int = 3) -> SequenceSource:
    windows = StreamWindows(num_tokens=TOKENS.num_tokens, sequence_length=LENGTH)
    order = sample_order(windows.num_sequences, held_out_fraction=held_out_fraction, seed=seed)
    return SequenceSource(
        name="numbers",
        tokens=TOKENS,
        windows=windows,
        order=order,
        sequence_length=LENGTH,
        vocab_size=9999,
        ignore_fraction=ignore_fraction,
    )


def readers(layout: ParallelLayout, **options) -> list[BatchReader]:
    source = source_of(**options)
    return [BatchReader(sources=[source], blend=ALONE, layout=layout, rank=rank) for rank in range(layout.world_size)]


def rows(batches: list[Batch]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [
        (tuple(inputs), tuple(labels))
        for batch in batches
        for inputs, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True)
    ]


def step_rows(layout: ParallelLayout, consumed: int, **options) -> Counter:
    return Counter(row for reader in readers(layout, **options) for row in rows(reader.training_step(consumed)))


@pytest.mark.parametrize(("dp", "micro"), [(1, 12), (1, 1), (2, 3), (4, 3), (4, 1), (12, 1)])
def test_every_split_of_the_global_batch_reads_the_same_rows(dp, micro):
    for consumed in (0, BATCH, 100 * BATCH):
        expected = step_rows(layout_of(dp=1, micro=4), consumed, ignore_fraction=0.3)
        assert step_rows(layout_of(dp=dp, micro=micro), consumed, ignore_fraction=0.3) == expected


def test_ranks_that_share_layers_read_the_same_rows():
    split = readers(layout_of(dp=2, micro=3, tp=2))
    read = [rows(reader.training_step(0)) for reader in split]
    assert read[0] == read[1] != read[2] == read[3]


def test_labels_are_the_inputs_one_further():
    (reader,) = readers(layout_of(dp=1, micro=12))
    for inputs, labels in rows(reader.training_step(0)):
        assert labels == tuple(token + 1 for token in inputs)


def test_an_epoch_reads_every_training_sequence_once_and_no_held_out_one():
    (reader,) = readers(layout_of(dp=1, micro=1))
    order = reader.sources[0].order
    num_training = order.num_training
    epochs = [
        [int(sequence) for sequence in order.training(np.arange(num_training) + epoch * num_training)] for epoch in (0, 1)
    ]
    held_out = {int(sequence) for sequence in order.held_out(np.arange(order.num_held_out))}
    assert len(held_out) == 12
    for epoch in epochs:
        assert set(epoch) == set(range(125)) - held_out
        assert len(epoch) == num_training
    assert epochs[0] != epochs[1]


def test_the_seed_changes_the_order_but_not_what_is_held_out():
    (one,), (other,) = readers(layout_of(dp=1, micro=12), seed=1), readers(layout_of(dp=1, micro=12), seed=2)
    assert rows(one.training_step(0)) != rows(other.training_step(0))
    assert rows(list(one.held_out(5))) == rows(list(other.held_out(5)))


def test_ignored_labels_have_the_share_that_was_asked_for():
    (reader,) = readers(layout_of(dp=1, micro=12), ignore_fraction=0.25)
    labels = np.concatenate([reader.training_step(BATCH * step)[0].labels for step in range(100)])
    assert np.mean(labels == IGNORED) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(("dp", "micro"), [(1, 3), (2, 2), (4, 3)])
@pytest.mark.parametrize("max_sequences", [1, 7, 100])
def test_every_held_out_sequence_counts_once_and_every_rank_runs_as_often(dp, micro, max_sequences):
    shares = [list(reader.held_out(max_sequences)) for reader in readers(layout_of(dp=dp, micro=micro))]
    assert len({len(share) for share in shares}) == 1
    counting = [row for share in shares for row in rows(share) if set(row[1]) != {IGNORED}]
    assert len(counting) == len(set(counting)) == min(max_sequences, 12)
    assert all(batch.input_ids.shape == (micro, LENGTH) for share in shares for batch in share)


def test_no_held_out_part_means_no_evaluation():
    (reader,) = readers(layout_of(dp=1, micro=1), held_out_fraction=0.0)
    assert list(reader.held_out(10)) == []


@pytest.mark.parametrize(("num_tokens", "fraction"), [(0, 0.0), (10, 0.0), (11, 0.1), (1000, 1.0)])
def test_too_little_text_is_refused(num_tokens, fraction):
    windows = StreamWindows(num_tokens=num_tokens, sequence_length=10)
    order = sample_order(windows.num_sequences, held_out_fraction=fraction, seed=0)
    (finding,) = size_findings(order, name="books", num_tokens=num_tokens, sequence_length=10)
    assert finding.message.startswith(f"books: {num_tokens} tokens make")
