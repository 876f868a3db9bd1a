"""What a run reads of prepared tokens: the same sequences in every layout, and after a resume those of the unbroken run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.config.data import DataConfig, MixtureSource
from orchestrator.config.enums import DataSource, Packing
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.data import reader as reader_module
from orchestrator.worker.data.batches import Batch, BatchReader
from orchestrator.worker.data.reader import batch_reader, data_identity
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.data.sequences import IGNORED
from tests.unit.tokens.written import write_folder, write_megatron

BATCH = 24
STEPS = 40
VOCABULARY = 500
LAYOUTS = [
    (dp, tp, pp, micro)
    for dp in (1, 2, 3, 4, 8, 24)
    for tp, pp in ((1, 1), (1, 2), (2, 2))
    for micro in (1, 2, 4, 12)
    if BATCH % (dp * micro) == 0
]
PACKINGS = [
    {"packing": packing, "reset_at_documents": reset}
    for packing in (Packing.stream, Packing.whole_documents)
    for reset in (False, True)
]
WEIGHTS = {"books": 0.5, "code": 0.2, "answers": 0.3}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    """Three sources of a few hundred short documents; those of ``answers`` have a prompt."""
    folder = tmp_path_factory.mktemp("tokens")
    generator = np.random.default_rng(0)
    for name, count in (("books", 300), ("code", 90), ("answers", 120), ("held_out", 50)):
        shards = [
            [generator.integers(0, VOCABULARY, size=size).tolist() for size in generator.integers(1, 40, size=count // 2)]
            for _ in range(2)
        ]
        answers = [[len(document) // 2 for document in shard] for shard in shards] if name == "answers" else None
        write_folder(folder / name, shards, vocab_size=VOCABULARY, answers=answers)
    return folder


def config_of(tokens: Path, *, seed: int = 1, weights: Mapping[str, float] = WEIGHTS, **changes: Any) -> RunConfig:
    data = DataConfig(
        source=DataSource.mixture,
        sources={name: MixtureSource(path=str(tokens / name), weight=weight) for name, weight in weights.items()},
        sequence_length=32,
        held_out_fraction=0.1,
        cache_dir=str(tokens / "cache"),
    )
    return RunConfig(seed=seed, data=replace(data, **changes))


def layout_of(dp: int, tp: int, pp: int, micro: int) -> ParallelLayout:
    return ParallelLayout(
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        train_batch_size=BATCH,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=BATCH // (dp * micro),
    )


def whole_reader(config: RunConfig) -> BatchReader:
    """Of one process that reads the whole batch at once."""
    return batch_reader(config, find_data(config, model_vocab_size=VOCABULARY), layout=layout_of(1, 1, 1, BATCH), rank=0)


def split(reader: BatchReader, layout: ParallelLayout) -> list[BatchReader]:
    """The readers of all ranks of another layout."""
    return [replace(reader, layout=layout, rank=rank) for rank in range(layout.world_size)]


def hashes(batches: Iterator[Batch] | list[Batch]) -> list[str]:
    """One of each row: of its tokens, its labels and its positions."""
    return [
        hashlib.sha256(b"".join(array[row].tobytes() for array in arrays if array is not None)).hexdigest()
        for batch in batches
        for arrays in [(batch.input_ids, batch.labels, batch.positions)]
        for row in range(len(batch.input_ids))
    ]


def step_hashes(reader: BatchReader, layout: ParallelLayout, consumed: int) -> list[str]:
    """The rows of the global batch in their order; ranks that share a data-parallel coordinate must read the same."""
    by_coordinate: dict[int, list[str]] = {}
    for rank, of_rank in enumerate(split(reader, layout)):
        own = hashes(of_rank.training_step(consumed))
        assert by_coordinate.setdefault(layout.coordinate(rank).data, own) == own
    rows = layout.train_micro_batch_size_per_gpu
    return [
        row
        for micro in range(layout.gradient_accumulation_steps)
        for coordinate in range(layout.data_parallel_size)
        for row in by_coordinate[coordinate][micro * rows : (micro + 1) * rows]
    ]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_every_split_of_the_global_batch_reads_the_same_sequences(tokens, packing):
    reader = whole_reader(config_of(tokens, **packing))
    expected = hashes(reader.training_step(17 * BATCH))
    assert len(set(expected)) > BATCH // 2
    for layout in LAYOUTS:
        assert step_hashes(reader, layout_of(*layout), 17 * BATCH) == expected, layout


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_a_resumed_run_reads_on_where_the_unbroken_one_would(tokens, packing):
    """In another layout too, and across the ends of epochs: the small source is read several times."""
    unbroken, resumed = (whole_reader(config_of(tokens, **packing)) for _ in range(2))
    order = [row for step in range(STEPS) for row in hashes(unbroken.training_step(step * BATCH))]
    small = unbroken.sources[1].order.num_training
    assert unbroken.blend.counts(STEPS * BATCH)[1] > small
    for step in (1, 13, STEPS - 1):
        consumed = step * BATCH
        assert step_hashes(resumed, layout_of(4, 1, 1, 3), consumed) == order[consumed : consumed + BATCH]


def test_each_source_is_read_by_its_weight_and_without_what_is_held_out(tokens):
    reader = whole_reader(config_of(tokens))
    of_source = {
        row: number
        for number, source in enumerate(reader.sources)
        for row in row_keys([source.row(sequence).input_ids for sequence in range(source.order.num_sequences)])
    }
    read = [of_source[row] for step in range(STEPS) for row in row_keys(list(reader.training_step(step * BATCH)[0].input_ids))]
    # answers, books, code: by name
    assert np.bincount(read).tolist() == [round(share * STEPS * BATCH) for share in (0.3, 0.5, 0.2)]
    held_out = {row for batch in reader.held_out(10**6) for row in row_keys(list(batch.input_ids))}
    trained = {row for step in range(STEPS) for row in row_keys(list(reader.training_step(step * BATCH)[0].input_ids))}
    assert held_out
    assert not held_out & trained


def row_keys(rows: list[np.ndarray]) -> list[bytes]:
    return [row.tobytes() for row in rows]


def test_held_out_sets_have_names_and_are_read_whole(tokens):
    config = config_of(tokens, evaluation={"qa": str(tokens / "answers"), "code": str(tokens / "code")})
    reader = whole_reader(config)
    assert reader.held_out_names == ("qa", "code")
    for layout in ((1, 1, 1, 4), (4, 1, 1, 3)):
        counting = {
            row
            for of_rank in split(reader, layout_of(*layout))
            for batch in of_rank.held_out(10**6, "code")
            for row, labels in zip(row_keys(list(batch.input_ids)), batch.labels, strict=True)
            if (labels != IGNORED).any()
        }
        assert len(counting) == reader.evaluation["code"].order.num_sequences


def test_an_index_of_many_documents_is_made_once_and_says_the_same(tokens, monkeypatch):
    config = config_of(tokens, **PACKINGS[-1])
    expected = hashes(whole_reader(config).training_step(0))
    monkeypatch.setattr(reader_module, "MANY_DOCUMENTS", 10)
    for _ in range(2):
        assert hashes(whole_reader(config).training_step(0)) == expected
    assert len([path for path in (tokens / "cache" / "indices").iterdir() if path.is_dir()]) == 6


def identity_of(config: RunConfig) -> dict[str, Any]:
    return data_identity(config, find_data(config, model_vocab_size=VOCABULARY))


@pytest.fixture(scope="module")
def identity(tokens) -> dict[str, Any]:
    return identity_of(config_of(tokens))


@pytest.mark.parametrize(
    "change",
    [
        {"weights": WEIGHTS | {"books": 0.6}},
        {"weights": WEIGHTS | {"held_out": 1}},
        {"packing": Packing.whole_documents},
        {"reset_at_documents": True},
        {"sequence_length": 16},
        {"held_out_fraction": 0.2},
        {"seed": 7},
    ],
    ids=str,
)
def test_what_changes_the_order_changes_its_identity(tokens, identity, change):
    assert identity_of(config_of(tokens, **change)) != identity


def test_other_tokens_have_another_identity(tokens, identity):
    config = config_of(tokens)
    config.data.sources["books"].path = str(tokens / "code")
    assert identity_of(config) != identity


def test_what_leaves_the_order_as_it_is_leaves_its_identity(tokens, identity, tmp_path):
    (tmp_path / "moved").symlink_to(tokens / "books")
    config = config_of(tokens, weights={"code": 2, "books": 5, "answers": 3}, evaluation={"qa": str(tokens / "answers")})
    config.data.sources["books"].path = str(tmp_path / "moved")
    assert identity_of(config) == identity


def refused(config: RunConfig, *, vocabulary: int = VOCABULARY) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        batch_reader(config, find_data(config, model_vocab_size=vocabulary), layout=layout_of(1, 1, 1, 1), rank=0)
    return [f"{finding.rule} {finding.field}: {finding.message}" for finding in caught.value.findings]


def test_everything_that_is_wrong_with_the_sources_is_said_at_once(tokens):
    config = config_of(tokens, evaluation={"other": "/neither"})
    config.data.sources["code"].path = "/not/there"
    books, code, other = refused(config, vocabulary=VOCABULARY - 1)[1:]
    assert books.startswith(f"tokenizer-vocabulary data.sources.books.path: the tokens of {tokens / 'books'}")
    assert str(VOCABULARY) in books and str(VOCABULARY - 1) in books
    assert code.startswith("token-files data.sources.code.path: /not/there")
    assert other.startswith("token-files data.evaluation.other: /neither")


def test_sources_that_are_shorter_than_a_sequence_are_named(tokens):
    assert [said.split(": ")[1] for said in refused(config_of(tokens, sequence_length=2000))] == ["answers", "code"]


def test_a_token_that_the_embedding_has_no_row_for_is_found_before_a_device_sees_it(tmp_path):
    """Of Megatron's files nobody says what the vocabulary is."""
    documents = [[1] * 300, [1] * 200 + [VOCABULARY] + [1] * 100]
    write_megatron(tmp_path / "text", documents)
    (said,) = refused(RunConfig(data=DataConfig(source=DataSource.tokens, path=str(tmp_path / "text"), sequence_length=32)))
    assert said.startswith("tokenizer-vocabulary data.path") and f"ids up to {VOCABULARY}" in said
