"""What a sequence holds: tokens, the labels that count, and positions that start anew at documents."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.tokens.order import sample_order
from orchestrator.tokens.windows import PackedWindows, StreamWindows, packed_table
from orchestrator.worker.data.sequences import IGNORED, PADDING, SequenceSource
from tests.unit.tokens.in_memory import Documents, numbered

LENGTH = 8
__ = IGNORED
_ = PADDING


def source_of(tokens: Documents, *, packed: bool, reset: bool) -> SequenceSource:
    windows = (
        PackedWindows(table=packed_table(tokens.document_ends, sequence_length=LENGTH))
        if packed
        else StreamWindows(num_tokens=tokens.num_tokens, sequence_length=LENGTH)
    )
    order = sample_order(windows.num_sequences, held_out_fraction=0, seed=0)
    return SequenceSource(
        name="test",
        tokens=tokens,
        document_ends=tokens.document_ends,
        answer_starts=tokens.answer_starts,
        windows=windows,
        order=order,
        sequence_length=LENGTH,
        vocab_size=9999,
        reset_at_documents=reset,
    )


def content(tokens: Documents, *, packed: bool, reset: bool) -> list[tuple[list[int], list[int], list[int] | None]]:
    source = source_of(tokens, packed=packed, reset=reset)
    rows = [source.row(sequence) for sequence in range(source.windows.num_sequences)]
    return [
        (row.input_ids.tolist(), row.labels.tolist(), None if row.positions is None else row.positions.tolist()) for row in rows
    ]


def test_a_stream_without_resets_reads_over_documents():
    assert content(numbered([3, 10, 4]), packed=False, reset=False) == [
        ([1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5, 6, 7, 8, 9], None),
        ([9, 10, 11, 12, 13, 14, 15, 16], [10, 11, 12, 13, 14, 15, 16, 17], None),
    ]


def test_resets_start_positions_anew_and_no_token_predicts_another_document():
    assert content(numbered([3, 0, 10, 4]), packed=False, reset=True) == [
        ([1, 2, 3, 4, 5, 6, 7, 8], [2, 3, __, 5, 6, 7, 8, 9], [0, 1, 2, 0, 1, 2, 3, 4]),
        # The document goes on from the sequence before: it begins anew, as what comes before cannot be attended to.
        ([9, 10, 11, 12, 13, 14, 15, 16], [10, 11, 12, 13, __, 15, 16, 17], [0, 1, 2, 3, 4, 0, 1, 2]),
    ]


def test_a_document_that_begins_with_the_sequence_s_last_label_is_not_predicted():
    (row, *_rest) = content(numbered([8, 9]), packed=False, reset=True)
    assert row == ([1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5, 6, 7, 8, __], list(range(8)))


def test_whole_documents_are_padded_and_padding_counts_nothing():
    assert content(numbered([3, 4, 5]), packed=True, reset=False) == [
        ([1, 2, 3, 4, 5, 6, 7, _], [2, 3, 4, 5, 6, 7, __, __], None),
        ([8, 9, 10, 11, 12, _, _, _], [9, 10, 11, 12, __, __, __, __], None),
    ]


def test_padding_is_a_document_of_its_own():
    assert content(numbered([3, 4, 5]), packed=True, reset=True) == [
        ([1, 2, 3, 4, 5, 6, 7, _], [2, 3, __, 5, 6, 7, __, __], [0, 1, 2, 0, 1, 2, 3, 0]),
        ([8, 9, 10, 11, 12, _, _, _], [9, 10, 11, 12, __, __, __, __], [0, 1, 2, 3, 4, 0, 1, 2]),
    ]


def test_a_long_document_is_cut_and_goes_on_without_losing_a_label():
    assert content(numbered([11, 2]), packed=True, reset=True) == [
        ([1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5, 6, 7, 8, 9], list(range(8))),
        ([9, 10, 11, 12, 13, _, _, _], [10, 11, __, 13, __, __, __, __], [0, 1, 2, 0, 1, 0, 1, 2]),
    ]


@pytest.mark.parametrize("reset", [False, True])
def test_the_loss_is_on_answers_only(reset):
    """Their first token, which the prompt's last one predicts, is one of them."""
    tokens = numbered([4, 5, 3], answers=[2, 4, 3])
    rows = content(tokens, packed=True, reset=reset)
    assert [labels for _ids, labels, _positions in rows] == [
        [__, 3, 4, __, __, __, __, 9],
        [__] * 8,
    ]


def test_answers_in_a_stream_are_found_where_the_document_was_cut():
    tokens = numbered([4, 13], answers=[2, 9])
    assert [labels for _ids, labels, _positions in content(tokens, packed=False, reset=False)] == [
        [__, 3, 4, __, __, __, __, __],
        [__, __, __, __, 14, 15, 16, 17],
    ]


def test_an_answer_without_a_prompt_counts_from_its_first_token_unless_documents_are_kept_apart():
    tokens = numbered([4, 5], answers=[0, 0])
    for reset, border in ((False, 5), (True, __)):
        ((_ids, labels, _positions),) = content(tokens, packed=True, reset=reset)
        assert labels == [2, 3, 4, border, 6, 7, 8, 9]


def test_a_document_is_found_among_many():
    """The look-up is by parts of the table."""
    sizes = np.random.default_rng(0).integers(0, 5, size=2000).tolist()
    tokens = numbered(sizes)
    begins = {begin + 1 for begin in (np.cumsum(sizes) - sizes).tolist()}
    for ids, labels, positions in content(tokens, packed=False, reset=True):
        assert positions is not None
        for place, (token, label) in enumerate(zip(ids, labels, strict=True)):
            assert (positions[place] == 0) == (place == 0 or token in begins)
            assert label == (__ if token + 1 in begins else token + 1)
