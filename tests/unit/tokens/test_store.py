"""Token files on disk: Megatron's format to the byte, one stream over many files, and what is refused."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from orchestrator.tokens import megatron
from orchestrator.tokens.megatron import token_dtype, write_index
from orchestrator.tokens.sources import is_there
from orchestrator.tokens.store import MOST_MAPPED, open_tokens
from orchestrator.tokens.writer import ShardWriter
from tests.unit.refusals import refusal
from tests.unit.tokens.written import megatron_bytes, write_folder, write_megatron

SHARDS = [[[1, 2, 3], [4]], [[5, 6], [], [7, 8, 9]]]


def test_an_index_is_written_as_megatron_writes_it(tmp_path):
    write_index(tmp_path / "own.idx", np.array([3, 0, 2]), np.dtype(np.uint16))
    assert (tmp_path / "own.idx").read_bytes() == megatron_bytes([3, 0, 2], [0, 1, 2, 3], code=8, itemsize=2)


def test_a_document_longer_than_an_int32_counts_is_several_sequences(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron, "LONGEST_SEQUENCE", 4)
    writer = ShardWriter(tmp_path / "long", dtype=np.dtype(np.int32))
    writer.write(np.arange(9), np.array([8, 1]))
    writer.close()
    assert (tmp_path / "long.idx").read_bytes() == megatron_bytes([4, 4, 1], [0, 2, 3], code=4, itemsize=4)
    assert open_tokens(tmp_path / "long").document_ends.tolist() == [8, 9]


@pytest.mark.parametrize(
    ("code", "dtype"), [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2"), (9, "<u4"), (10, "<u8")]
)
def test_megatron_files_are_read_as_they_are(tmp_path, code, dtype):
    write_megatron(tmp_path / "books", [[1, 2, 3], [], [100, 5]], code=code, dtype=dtype)
    store = open_tokens(tmp_path / "books")
    assert (store.num_tokens, store.num_documents) == (5, 3)
    assert store.read(1, 5).tolist() == [2, 3, 100, 5]
    assert store.read(0, 5).dtype == np.int64
    assert store.document_ends.tolist() == [3, 3, 5]
    assert store.answer_starts is store.vocab_size is store.tokenizer_path is store.end_of_document is None
    assert store.verify() == []


def test_documents_of_several_sequences_are_documents(tmp_path):
    (tmp_path / "parts.idx").write_bytes(megatron_bytes([2, 1, 4], [0, 2, 3], code=4, itemsize=4))
    (tmp_path / "parts.bin").write_bytes(np.arange(7, dtype="<i4").tobytes())
    assert open_tokens(tmp_path / "parts").document_ends.tolist() == [3, 7]


def test_the_modes_of_multimodal_files_are_no_matter(tmp_path):
    write_megatron(tmp_path / "books", [[1, 2], [3]])
    with (tmp_path / "books.idx").open("ab") as file:
        file.write(b"\x00\x01")
    assert open_tokens(tmp_path / "books").document_ends.tolist() == [2, 3]


def test_a_folder_is_one_stream_over_its_files(tmp_path):
    write_folder(tmp_path, SHARDS, answers=[[1, 0], [1, 0, 2]])
    store = open_tokens(tmp_path)
    assert (store.num_tokens, store.vocab_size, store.end_of_document) == (9, 1000, 0)
    for start in range(10):
        for stop in range(start, 10):
            assert store.read(start, stop).tolist() == list(range(start + 1, stop + 1))
    assert store.document_ends.tolist() == [3, 4, 6, 6, 9]
    assert store.answer_starts.tolist() == [1, 0, 1, 0, 2]
    assert store.verify() == []


def test_more_files_than_may_be_open_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    shards = [[[number, 1]] for number in range(MOST_MAPPED + 60)]
    write_folder(tmp_path, shards, answers=[[1]] * len(shards))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + MOST_MAPPED + 30, limits[1]))
    try:
        store = open_tokens(tmp_path)
        assert store.read(0, store.num_tokens)[::2].tolist() == list(range(len(shards)))
        assert store.answer_starts is not None and len(store.answer_starts) == len(shards)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_document_may_come_in_pieces(tmp_path):
    writer = ShardWriter(tmp_path / "pieces", dtype=token_dtype(100))
    writer.write(np.array([1, 2, 3]), np.array([1, 2]), ends_document=False)
    writer.write(np.array([4]), np.array([1]), ends_document=False)
    assert writer.is_within_document
    writer.write(np.array([5, 6]), np.array([1, 1]))
    assert writer.close().documents == 3
    assert open_tokens(tmp_path / "pieces").document_ends.tolist() == [1, 5, 6]


def test_the_identity_is_that_of_the_tokens(tmp_path):
    for name, last in (("one", 3), ("same", 3), ("other", 4)):
        write_folder(tmp_path / name, [[[1, 2, last]]])
        write_megatron(tmp_path / f"{name}_file", [[1, 2, last]])
    for end in ("", "_file"):
        one, same, other = (open_tokens(tmp_path / f"{name}{end}").identity for name in ("one", "same", "other"))
        assert one == same != other


def test_a_file_under_a_scratch_name_is_no_file_yet(tmp_path):
    with ShardWriter(tmp_path / "half", dtype=token_dtype(100)) as writer:
        writer.write(np.array([1, 2, 3]), np.array([3]))
    assert not list(tmp_path.glob("half*"))


def cut(path, size):
    os.truncate(path, size)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: cut(folder / "books.bin", 8), "books.bin"),
        (lambda folder: cut(folder / "books.idx", 60), "books.idx"),
        (lambda folder: cut(folder / "books.idx", 20), "books.idx"),
        (lambda folder: cut(folder / "books.idx", 0), "books.idx"),
        (lambda folder: (folder / "books.bin").unlink(), "books.bin"),
        (lambda folder: (folder / "books.idx").unlink(), "books.idx"),
        (lambda folder: (folder / "books.idx").write_bytes(b"not Megatron's at all, but some other file"), "books.idx"),
        (lambda folder: (folder / "books.idx").write_bytes(megatron_bytes([5], [0, 1], code=7, itemsize=2)), "books.idx"),
        (lambda folder: (folder / "books.idx").write_bytes(megatron_bytes([5], [0], code=8, itemsize=2)), "books.idx"),
    ],
    ids=["short-bin", "short-index", "short-header", "empty-index", "no-bin", "no-index", "other", "floats", "no-documents"],
)
def test_files_that_are_damaged_are_refused_by_name(tmp_path, damage, named):
    write_megatron(tmp_path / "books", [[1, 2, 3], [4, 5]])
    damage(tmp_path)
    finding = refusal(lambda: open_tokens(tmp_path / "books", field="data.sources.books.path"))
    assert named in finding.message
    assert finding.field == "data.sources.books.path"


def test_an_index_that_contradicts_itself_is_refused_when_documents_are_asked_for(tmp_path):
    write_megatron(tmp_path / "books", [[1, 2, 3], [4, 5]])
    index = bytearray((tmp_path / "books.idx").read_bytes())
    index[34:38] = (2).to_bytes(4, "little")  # the first size
    (tmp_path / "books.idx").write_bytes(index)
    store = open_tokens(tmp_path / "books")
    assert "books.idx" in refusal(lambda: store.document_ends).message
    assert len(store.verify()) == 1


@pytest.mark.parametrize("name", ["shard-00001.bin", "shard-00000.idx", "shard-00001.answers.npy"])
def test_a_changed_byte_is_found_by_a_full_check(tmp_path, name):
    write_folder(tmp_path, SHARDS, answers=[[1, 0], [1, 0, 2]])
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2 + 3] ^= 1
    (tmp_path / name).write_bytes(content)
    assert any(name in finding.message for finding in open_tokens(tmp_path).verify())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _folder: None, "is not there"),
        (lambda folder: folder.mkdir(), "has no tokens"),
        (lambda folder: (folder / "preparing").mkdir(parents=True), "is not complete"),
        (lambda folder: write_folder(folder, SHARDS) or (folder / "tokens.json").unlink(), "has Megatron files"),
        (lambda folder: write_folder(folder, SHARDS) or (folder / "tokens.json").write_text('{"format": 1}'), "cannot be read"),
        (lambda folder: write_folder(folder, SHARDS) or (folder / "tokens.json").write_text("[]"), "cannot be read"),
        (lambda folder: write_folder(folder, SHARDS) or (folder / "shard-00001.bin").unlink(), "shard-00001.bin is not there"),
        (lambda folder: write_folder(folder, SHARDS) or write_megatron(folder / "shard-00000", [[1]]), "by tokens.json"),
    ],
)
def test_a_folder_without_whole_tokens_is_refused(tmp_path, make, says):
    make(tmp_path / "tokens")
    assert says in refusal(lambda: open_tokens(tmp_path / "tokens")).message


def test_a_folder_that_must_not_be_entered_is_named(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    monkeypatch.setattr(Path, "exists", refused)
    assert is_there(str(tmp_path / "theirs"))
    finding = refusal(lambda: open_tokens(tmp_path / "theirs"))
    assert (finding.rule, finding.field) == ("token-files", "data.path")
    assert "theirs/tokens.json cannot be read: Permission denied" in finding.message


def test_the_home_of_an_unknown_user_is_no_folder():
    assert not is_there("~nobody_of_that_name/tokens")
    assert "is not there" in refusal(lambda: open_tokens("~nobody_of_that_name/tokens")).message


def test_a_file_name_with_its_ending_is_answered_with_the_prefix(tmp_path):
    write_megatron(tmp_path / "books", [[1]])
    assert str(tmp_path / "books") in refusal(lambda: open_tokens(tmp_path / "books.bin")).fix


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "int32")])
def test_large_vocabularies_get_wider_tokens(vocab_size, dtype):
    assert token_dtype(vocab_size).name == dtype
