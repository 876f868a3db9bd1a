"""From text of every format to token files: what is in them, what is bad, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from orchestrator.tokens.store import open_tokens
from orchestrator.worker.data import chunks, plain_files, tables
from orchestrator.worker.data.chunks import InputFile, Place
from orchestrator.worker.data.plain_files import text_chunks
from tests.unit.refusals import refusal
from tests.unit.worker.data.preparing import END, VOCABULARY, documents_in, ids, run, sentences, write_lines, write_tokenizer

TEXTS = ["word1 word2", "word3", "word4 word5 word6 unknown"]
EXPECTED = [[*ids(text), VOCABULARY[END]] for text in TEXTS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


SMALL = 64


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of so few bytes, that a few sentences are many of them."""
    for module in (chunks, plain_files, tables):
        monkeypatch.setattr(module, "CHUNK_BYTES", SMALL)


def rows(texts):
    return [{"text": text, "number": number} for number, text in enumerate(texts)]


def as_jsonl(folder, texts):
    return write_lines(folder / "books.jsonl", rows(texts))


def as_gzip(folder, texts):
    path = as_jsonl(folder, texts)
    with gzip.open(folder / "books.jsonl.gz", "wb") as file:
        file.write(path.read_bytes())
    path.unlink()
    return folder / "books.jsonl.gz"


def as_zstandard(folder, texts):
    path = as_jsonl(folder, texts)
    with pyarrow.OSFile(str(folder / "books.ndjson.zst"), "wb") as raw, pyarrow.CompressedOutputStream(raw, "zstd") as file:
        file.write(path.read_bytes())
    path.unlink()
    return folder / "books.ndjson.zst"


def as_parquet(folder, texts):
    parquet.write_table(pyarrow.Table.from_pylist(rows(texts)), folder / "books.parquet", row_group_size=2)
    return folder / "books.parquet"


def as_dataset(folder, texts):
    datasets.Dataset.from_list(rows(texts)).save_to_disk(folder / "dataset", num_shards=2)
    return folder / "dataset"


def as_dataset_with_splits(folder, texts):
    train = datasets.Dataset.from_list(rows(texts))
    datasets.DatasetDict({"train": train, "test": train}).save_to_disk(folder / "splits")
    return folder / "splits" / "train"


def as_text(folder, texts):
    (folder / "books").mkdir()
    for number, text in enumerate(texts):
        (folder / "books" / f"{number}.txt").write_text(text)
    (folder / "books" / "empty.md").touch()
    return folder / "books"


FORMATS = [as_jsonl, as_gzip, as_zstandard, as_parquet, as_dataset, as_dataset_with_splits, as_text]


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_gives_the_same_documents(folder, write):
    result = run(folder, [write(folder, TEXTS)])
    assert documents_in(folder / "tokens") == EXPECTED
    assert (result["documents"], result["bad_documents"], result["vocab_size"]) == (3, 0, len(VOCABULARY))
    assert open_tokens(folder / "tokens").verify() == []


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("write", "processes"), [*((write, 1) for write in FORMATS), (as_jsonl, 2)])
def test_many_chunks_come_out_in_order(folder, write, processes):
    texts = sentences(40)
    run(folder, [write(folder, texts)], shard_tokens=50, processes=processes)
    store = open_tokens(folder / "tokens")
    named = sorted(enumerate(texts), key=lambda entry: str(entry[0])) if write is as_text else enumerate(texts)
    assert documents_in(folder / "tokens") == [[*ids(text), 0] for _, text in named]
    assert all(50 <= file.num_tokens < 50 + 2 * SMALL for file in store.files[:-1])
    assert len(store.files) > 2


@pytest.mark.parametrize(
    "type_",
    [pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())],
)
def test_strings_of_every_kind_are_text(folder, type_):
    column = pyarrow.array(TEXTS) if type_ == pyarrow.binary() else pyarrow.array(TEXTS).cast(type_)
    parquet.write_table(pyarrow.table({"text": column.cast(type_)}), folder / "a.parquet")
    run(folder, [folder / "a.parquet"])
    assert documents_in(folder / "tokens") == EXPECTED


@pytest.mark.usefixtures("small_chunks")
def test_a_long_text_is_one_document_in_pieces(folder):
    text = "\n".join(sentences(30))
    (folder / "long.txt").write_text(text)
    (folder / "short.txt").write_text("word1")
    run(folder, [folder / "long.txt", folder / "short.txt"], shard_tokens=10)
    assert documents_in(folder / "tokens") == [[*ids(text), 0], [*ids("word1"), 0]]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("text", ["ä" * 500, "☕" * 300, "word1 " * 100, "x" * 1000, "short\n" * 100, "a\n\n\nb" * 60])
def test_text_is_cut_between_characters_and_nothing_is_lost(tmp_path, text):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    file = InputFile(path=path, format="text", size=path.stat().st_size, mtime_ns=0)
    pieces = [chunk.content.decode() for chunk in text_chunks(file, Place(), field="prepare.input")]
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert all(len(piece.encode()) <= 2 * SMALL for piece in pieces)


def test_inputs_are_read_in_the_order_they_are_named_and_folders_sorted(folder):
    (folder / "more" / "deep").mkdir(parents=True)
    write_lines(folder / "more" / "b.jsonl", [{"text": "word2"}])
    write_lines(folder / "more" / "deep" / "a.jsonl", [{"text": "word3"}])
    (folder / "more" / "notes.rst").write_text("word9")
    last = write_lines(folder / "a.jsonl", [{"text": "word1"}])
    result = run(folder, [folder / "more", last])
    assert documents_in(folder / "tokens") == [[*ids(word), 0] for word in ("word2", "word3", "word1")]
    assert result["left_out"] == {".rst": 1}


def test_links_are_followed_and_not_in_a_circle(folder):
    (folder / "books" / "deep").mkdir(parents=True)
    (folder / "elsewhere").mkdir()
    write_lines(folder / "elsewhere" / "b.jsonl", [{"text": "word2"}])
    write_lines(folder / "books" / "a.jsonl", [{"text": "word1"}])
    (folder / "books" / "deep" / "link").symlink_to(folder / "elsewhere")
    (folder / "books" / "deep" / "up").symlink_to(folder / "books")
    (folder / "books" / "gone.bin").symlink_to(folder / "nowhere")
    assert run(folder, [folder / "books"])["left_out"] == {".bin": 1}
    assert documents_in(folder / "tokens") == [[*ids("word1"), 0], [*ids("word2"), 0]]


def link_to_nothing(folder):
    path = as_text(folder, TEXTS)
    (path / "gone.txt").symlink_to(folder / "nowhere")
    return [path]


def link_to_another(folder):
    path = as_text(folder, TEXTS)
    (path / "again.txt").symlink_to(path / "0.txt")
    return [path]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (link_to_nothing, "gone.txt cannot be read: No such file"),
        (link_to_another, "0.txt and {books}/again.txt are the same file"),
        (lambda folder: [as_text(folder, TEXTS), folder / "books" / "0.txt"], "0.txt would be read twice"),
    ],
)
def test_text_that_is_not_there_or_there_twice_is_refused(folder, make, says):
    inputs = make(folder)
    finding = refusal(lambda: run(folder, inputs))
    assert finding.field == "prepare.input"
    assert says.format(books=folder / "books") in finding.message


def test_a_byte_order_mark_is_no_text(folder):
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfword1 word2\r\n")
    (folder / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "word3"}\r\n{"text": "word4"}\r\n')
    run(folder, [folder / "a.txt", folder / "b.jsonl"])
    assert documents_in(folder / "tokens") == [[*ids(text), 0] for text in ("word1 word2", "word3", "word4")]


def test_a_prompt_and_its_answer_say_where_the_answer_begins(folder):
    path = write_lines(folder / "chats.jsonl", [{"q": "word1 word2", "a": "word3"}, {"q": "word4", "a": "word5 word6"}])
    run(folder, [path], fields=("q", "a"))
    assert documents_in(folder / "tokens") == [[3, 4, 5, 0], [6, 7, 8, 0]]
    starts = open_tokens(folder / "tokens").answer_starts
    assert starts is not None
    assert (starts.dtype, starts.tolist()) == (np.int32, [2, 1])


def test_the_entropy_of_the_frequencies_is_kept(folder):
    run(folder, [write_lines(folder / "a.jsonl", [{"text": "word1"}])])
    assert open_tokens(folder / "tokens").unigram_entropy == pytest.approx(np.log(2))


BAD_LINES = [
    ('{"text": "word1"', "broken_json"),
    ("[" * 100_000, "broken_json"),
    ('{"txt": "word1"}', "missing_field"),
    ('{"text": 5}', "wrong_type"),
    ('{"text": null}', "wrong_type"),
    ('["word1"]', "wrong_type"),
    ('{"text": ""}', "empty"),
    ('{"text": "  "}', "empty"),
    ('{"text": "\\ud83d"}', "invalid_utf8"),
]


@pytest.mark.parametrize(
    ("line", "defect"), BAD_LINES, ids=[f"{number}-{defect}" for number, (_, defect) in enumerate(BAD_LINES)]
)
def test_a_bad_line_is_named_and_refused(folder, line, defect):
    path = write_lines(folder / "a.jsonl", [{"text": "word1"}, line, "", {"text": "word2"}])
    finding = refusal(lambda: run(folder, [path]))
    assert finding.field == "prepare.max_bad_fraction"
    assert f"{path}:2" in finding.message
    assert f"1 {defect}" in finding.message
    (entry,) = map(json.loads, (folder / "tokens" / "bad_documents.jsonl").read_text().splitlines())
    assert (entry["place"], entry["defect"]) == (f"{path}:2", defect)


def test_bytes_that_are_no_utf8_are_bad_where_they_stand(folder):
    (folder / "a.jsonl").write_bytes(b'{"text": "word1"}\n{"text": "\xff"}\n{"text": "word2"}')
    result = run(folder, [folder / "a.jsonl"], max_bad_fraction=0.4)
    assert documents_in(folder / "tokens") == [[*ids("word1"), 0], [*ids("word2"), 0]]
    assert result["bad_documents"] == 1


def test_bad_rows_are_named_by_their_number(folder):
    table = pyarrow.table({"text": pyarrow.array([b"word1", None, b"\xff"]).cast(pyarrow.binary())})
    parquet.write_table(table, folder / "a.parquet")
    message = refusal(lambda: run(folder, [folder / "a.parquet"])).message
    assert f"{folder / 'a.parquet'} row 2" in message
    assert f"{folder / 'a.parquet'} row 3" in message


def test_names_that_are_no_unicode_are_written_down(folder):
    path = Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jsonl"))
    write_lines(path, ['{"\\ud83d": "word1"}', {"text": "word2"}])
    message = refusal(lambda: run(folder, [path])).message
    assert "caf\udce9.jsonl:1: no field 'text'; there is \ud83d" in message
    assert run(folder, [path], max_bad_fraction=0.5)["documents"] == 1


def test_nobody_is_told_to_leave_everything_out(folder):
    path = write_lines(folder / "a.jsonl", ["broken", '{"text": ""}'])
    assert "max_bad_fraction" not in refusal(lambda: run(folder, [path])).fix


@pytest.mark.usefixtures("small_chunks")
def test_a_long_text_that_is_no_utf8_is_bad_as_a_whole(folder):
    (folder / "a.txt").write_bytes(b"word1\n" * 100 + b"\xff\n")
    (folder / "b.txt").write_text("word2")
    result = run(folder, [folder / "a.txt", folder / "b.txt"], max_bad_fraction=0.5)
    assert documents_in(folder / "tokens") == [[*ids("word2"), 0]]
    assert result["bad_documents"] == 1


def test_bad_documents_within_the_limit_are_left_out_without_work_done_twice(folder):
    path = write_lines(folder / "a.jsonl", [{"text": "word1"}, "broken", {"text": "word2"}])
    refusal(lambda: run(folder, [path]))
    made = (folder / "tokens" / "shard-00000.bin").stat().st_mtime_ns
    result = run(folder, [path], max_bad_fraction=0.34)
    assert (result["documents"], result["bad_documents"]) == (2, 1)
    assert (folder / "tokens" / "shard-00000.bin").stat().st_mtime_ns == made


@pytest.mark.usefixtures("small_chunks")
def test_a_wrong_field_ends_the_work_early(folder):
    path = write_lines(folder / "a.jsonl", [{"txt": "word1"}] * 5000)
    finding = refusal(lambda: run(folder, [path]))
    assert finding.field == "prepare.max_bad_fraction"
    assert 1000 <= int(finding.message.split()[0]) < 1100
    assert "prepare.text_field" in finding.fix


def test_a_trained_tokenizer_is_kept_beside_the_tokens(folder):
    texts = sentences(50)
    result = run(folder, [as_jsonl(folder, texts)], tokenizer=None)
    store = open_tokens(folder / "tokens")
    assert store.tokenizer_path == folder / "tokens" / "tokenizer.json"
    assert 257 < result["vocab_size"] <= 300
    assert store.end_of_document == 0


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("tokenizer_config.json", {"eos_token": "word7"}),
        ("tokenizer_config.json", {"eos_token": {"content": "word7"}}),
        ("special_tokens_map.json", {"eos_token": {"content": "word7"}}),
    ],
)
def test_a_folder_of_a_tokenizer_says_what_ends_a_document(folder, name, beside):
    write_tokenizer(folder / "own" / "tokenizer.json")
    (folder / "own" / "tokenizer_config.json").write_text("{}")
    (folder / "own" / name).write_text(json.dumps(beside))
    run(folder, [as_jsonl(folder, TEXTS)], tokenizer=str(folder / "own"))
    assert {document[-1] for document in documents_in(folder / "tokens")} == {VOCABULARY["word7"]}
    assert (folder / "tokens" / "tokenizer_config.json").is_file()


def test_an_end_of_documents_that_the_tokenizer_has_not_is_refused(folder):
    write_tokenizer(folder / "own" / "tokenizer.json")
    (folder / "own" / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    path = as_jsonl(folder, TEXTS)
    finding = refusal(lambda: run(folder, [path], tokenizer=str(folder / "own")))
    assert (finding.rule, finding.field) == ("tokenizer-end", "data.tokenizer_path")
    assert "<|im_end|>" in finding.message


def test_a_tokenizer_without_an_end_of_documents_is_refused(folder):
    write_tokenizer(folder / "own.json", end="[STOP]")
    path = as_jsonl(folder, TEXTS)
    assert refusal(lambda: run(folder, [path], tokenizer=str(folder / "own.json"))).field == "data.tokenizer_path"


@pytest.mark.parametrize("name", ["missing.json", "a.jsonl", "nothing"])
def test_what_is_no_tokenizer_is_refused(folder, name):
    (folder / "nothing").mkdir()
    path = write_lines(folder / "a.jsonl", rows(TEXTS))
    assert refusal(lambda: run(folder, [path], tokenizer=str(folder / name))).field == "data.tokenizer_path"


def selection(folder):
    data = datasets.Dataset.from_list(rows(TEXTS))
    data.save_to_disk(folder / "selection")
    state = json.loads((folder / "selection" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (folder / "selection" / "state.json").write_text(json.dumps(state))
    return folder / "selection"


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-20])
    return path


@pytest.mark.parametrize(
    ("make", "options", "field", "says"),
    [
        (lambda folder: folder / "missing", {}, "prepare.input", "does not exist"),
        (lambda folder: as_text(folder, []), {}, "prepare.input", "holds no text"),
        (lambda folder: write_lines(folder / "a.jsonl", []), {}, "prepare.input", "holds no text"),
        (lambda folder: write_lines(folder / "a.jsonl", ["", " "]), {}, "prepare.input", "holds no document"),
        (lambda folder: write_lines(folder / "a.csv", ["x"]), {}, "prepare.format", "ending"),
        (lambda folder: as_parquet(folder, TEXTS), {"fields": ("body",)}, "prepare.text_field", "it has text, number"),
        (lambda folder: as_dataset(folder, TEXTS), {"fields": ("body",)}, "prepare.text_field", "it has text, number"),
        (lambda folder: as_dataset_with_splits(folder, TEXTS).parent, {}, "prepare.input", "train, test"),
        (lambda folder: as_dataset(folder, TEXTS), {"format": "jsonl"}, "prepare.format", "saved dataset"),
        (lambda folder: as_text(folder, TEXTS), {"format": "dataset"}, "prepare.format", "state.json"),
        (lambda folder: as_jsonl(folder, TEXTS), {"format": "dataset"}, "prepare.format", "is a file"),
        (lambda folder: as_text(folder, TEXTS), {"fields": ("q", "a")}, "prepare.prompt_field", "plain text"),
        (lambda folder: cut(as_gzip(folder, TEXTS)), {}, "prepare.input", "cannot be read"),
        (lambda folder: cut(as_parquet(folder, TEXTS)), {}, "prepare.input", "cannot be read"),
        (lambda folder: cut(next(as_dataset(folder, TEXTS).glob("*00000-*"))).parent, {}, "prepare.input", "cannot be read"),
        (selection, {}, "prepare.input", "selection"),
        (lambda folder: as_jsonl(folder, TEXTS), {"text_endings": (".jsonl",)}, "data.file_suffixes", "is jsonl"),
    ],
)  # fmt: skip
def test_input_that_cannot_be_used_is_refused(folder, make, options, field, says):
    path = make(folder)
    finding = refusal(lambda: run(folder, [path], **options))
    assert finding.field == field
    assert says in finding.message


def test_a_pattern_is_answered_with_the_folder(folder):
    assert "name the folder" in refusal(lambda: run(folder, [folder / "*.jsonl"])).fix


def test_text_beside_lines_of_json_is_read_if_it_is_said(folder):
    (folder / "books").mkdir()
    as_jsonl(folder / "books", TEXTS)
    (folder / "books" / "README.md").write_text("word9")
    finding = refusal(lambda: run(folder, [folder / "books"]))
    assert finding.field == "prepare.format"
    assert "README.md" in finding.message
    assert run(folder, [folder / "books"], format="jsonl")["left_out"] == {".md": 1}
    assert documents_in(folder / "tokens") == EXPECTED


def test_a_format_that_is_said_counts_whatever_the_ending(folder):
    run(folder, [write_lines(folder / "a.data", rows(TEXTS))], format="jsonl")
    assert documents_in(folder / "tokens") == EXPECTED


def test_json_is_lines_of_it_in_a_folder_if_it_is_said(folder):
    (folder / "books").mkdir()
    write_lines(folder / "books" / "c4.json", rows(TEXTS))
    with gzip.open(folder / "books" / "d4.json.gz", "wb") as file:
        file.write(b'{"text": "word9"}')
    message = refusal(lambda: run(folder, [folder / "books"])).message
    assert "there is 1 x .json, 1 x .json.gz" in message
    run(folder, [folder / "books"], format="jsonl")
    assert documents_in(folder / "tokens") == [*EXPECTED, [*ids("word9"), 0]]
    write_lines(folder / "books" / "surely.jsonl", [{"text": "word1"}])
    again = run(folder, [folder / "books"], format="jsonl", output=str(folder / "again"))
    assert (again["documents"], again["left_out"]) == (1, {".json": 1, ".json.gz": 1})


def test_a_folder_that_holds_something_else_is_left_alone(folder):
    (folder / "tokens").mkdir()
    (folder / "tokens" / "thesis.txt").touch()
    path = as_jsonl(folder, TEXTS)
    assert "thesis.txt" in refusal(lambda: run(folder, [path])).message
