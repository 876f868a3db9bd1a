"""From text to a token file: what is read, what is kept, and when it is made again."""

from __future__ import annotations

import errno
import fcntl
import math
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import DataSource
from orchestrator.tokens.store import TokenStore
from orchestrator.worker.data.corpus import find_corpus
from orchestrator.worker.data.shards import unigram_entropy
from orchestrator.worker.data.tokenizer import END_OF_TEXT
from orchestrator.worker.data.tokens import obtain_tokenizer, random_tokens, tokens_of_text
from tests.unit.refusals import refusal

STORIES = {"b.txt": "the second story\n" * 30, "a.txt": "the first story, naïve ☕\n" * 30, "notes.log": "not a story\n"}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "text"
    (root / "deep").mkdir(parents=True)
    for name, text in STORIES.items():
        (root / name).write_text(text, encoding="utf-8")
    (root / "deep" / "c.txt").write_text("a third\n", encoding="utf-8")
    return root


def config_of(folder, tmp_path, **changes) -> DataConfig:
    values = {
        "source": DataSource.text,
        "path": str(folder),
        "file_suffixes": [".txt"],
        "cache_dir": str(tmp_path / "cache"),
        "tokenizer_vocab_size": 300,
    }
    return DataConfig(**{**values, **changes})


def tokenize(config: DataConfig, *, model_vocab_size: int = 512):
    corpus = find_corpus(config)
    tokenizer = obtain_tokenizer(config, corpus, model_vocab_size=model_vocab_size)
    return tokens_of_text(corpus, tokenizer, Path(config.cache_dir)), tokenizer


def all_of(tokens: TokenStore) -> np.ndarray:
    return tokens.read(0, tokens.num_tokens)


def made_at(tokens: TokenStore) -> int:
    return (tokens.path / "tokens.json").stat().st_mtime_ns


def test_the_tokens_give_back_every_document_in_sorted_order(folder, tmp_path):
    tokens, tokenizer = tokenize(config_of(folder, tmp_path))
    text = tokenizer.tokenizer.decode(all_of(tokens).tolist(), skip_special_tokens=False)
    assert text.split(END_OF_TEXT) == [STORIES["a.txt"], STORIES["b.txt"], "a third\n", ""]
    assert tokens.num_documents == 3


def test_an_end_of_text_that_is_spelt_out_in_the_text_is_text(tmp_path):
    file = tmp_path / "trap.txt"
    file.write_text(f"before {END_OF_TEXT} after\n" * 5)
    tokens, tokenizer = tokenize(config_of(file, tmp_path))
    assert all_of(tokens).tolist().count(tokenizer.end_of_text) == 1


def test_the_second_start_finds_everything_made(folder, tmp_path):
    config = config_of(folder, tmp_path)
    first, tokenizer = tokenize(config)
    changed, made = tokenizer.path.stat().st_mtime_ns, made_at(first)
    second, again = tokenize(config)
    assert again.path.stat().st_mtime_ns == changed
    assert made_at(second) == made
    assert second.identity == first.identity


@pytest.mark.parametrize("change", ["text", "vocabulary", "max_bytes", "suffixes"])
def test_whatever_shapes_the_tokens_makes_new_ones(folder, tmp_path, change):
    first, _ = tokenize(config_of(folder, tmp_path))
    options = {}
    if change == "text":
        (folder / "a.txt").write_text(STORIES["a.txt"].replace("first", "other"), encoding="utf-8")
    else:
        options = {
            "vocabulary": {"tokenizer_vocab_size": 280},
            "max_bytes": {"max_bytes": 100},
            "suffixes": {"file_suffixes": [".txt", ".log"]},
        }[change]
    second, _ = tokenize(config_of(folder, tmp_path, **options))
    assert second.identity != first.identity


def test_a_token_file_that_was_cut_is_made_again(folder, tmp_path):
    config = config_of(folder, tmp_path)
    first, _ = tokenize(config)
    whole = all_of(first).tolist()
    os.truncate(first.path / "shard-00000.bin", 10)
    of_a_killed_one = first.path.with_name(f".{first.path.name}.x1y2")
    of_a_killed_one.mkdir()
    second, _ = tokenize(config)
    assert all_of(second).tolist() == whole
    assert not of_a_killed_one.exists()


def test_max_bytes_cuts_between_characters(folder, tmp_path):
    corpora = [find_corpus(config_of(folder, tmp_path, max_bytes=size)) for size in (20, 21)]
    texts = [b"".join(chunk.content for chunk in corpus.chunks()).decode() for corpus in corpora]
    assert texts == ["the first story, na", "the first story, naï"]


def test_processes_that_start_together_make_the_tokens_once(folder, tmp_path):
    config = config_of(folder, tmp_path)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        read = pool.map(chunks_read, [config] * 3)
    assert sum(read) == chunks_read(config_of(folder, tmp_path / "alone"))


def chunks_read(config: DataConfig) -> int:
    """For the tokenizer and for the tokens; each is there already if another process was first."""
    read: list[int] = []
    corpus = find_corpus(config, advanced=lambda: read.append(1))
    tokens_of_text(corpus, obtain_tokenizer(config, corpus, model_vocab_size=512), Path(config.cache_dir))
    return len(read)


def test_a_disk_without_locks_is_refused(folder, tmp_path, monkeypatch):
    def no_locks(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert refusal(lambda: tokenize(config_of(folder, tmp_path))).field == "data.cache_dir"


def test_this_pythons_library_is_found_without_installed_packages_and_tests():
    corpus = find_corpus(DataConfig(source=DataSource.python_stdlib))
    names = {str(file.path.relative_to(corpus.root)) for file in corpus.files}
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= names
    assert not any({"site-packages", "test"} & set(name.split("/")) for name in names)
    assert corpus.num_bytes > 2**20


def test_text_that_cannot_be_used_is_refused(folder, tmp_path):
    (folder / "latin.txt").write_bytes("naïve".encode("latin-1"))
    assert refusal(lambda: tokenize(config_of(folder, tmp_path))).field == "data.path"
    assert refusal(lambda: find_corpus(config_of(tmp_path / "missing", tmp_path))).field == "data.path"
    assert refusal(lambda: find_corpus(config_of(folder, tmp_path, file_suffixes=[".rst"]))).field == "data.path"
    (folder / "gone.rst").symlink_to(tmp_path / "nowhere")
    assert "gone.rst" in refusal(lambda: find_corpus(config_of(folder, tmp_path, file_suffixes=[".rst"]))).message
    (folder / "again.txt").symlink_to(folder / "a.txt")
    assert "the same file" in refusal(lambda: find_corpus(config_of(folder, tmp_path))).message


def test_a_tokenizer_of_ones_own_is_used(folder, tmp_path):
    _, trained = tokenize(config_of(folder, tmp_path))
    own = tmp_path / "mine.json"
    own.write_bytes(trained.path.read_bytes())
    tokens, tokenizer = tokenize(config_of(folder, tmp_path, tokenizer_path=str(own)))
    assert tokenizer.path == own
    assert tokens.vocab_size == Tokenizer.from_file(str(own)).get_vocab_size()
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    changed, _ = tokenize(config_of(folder, tmp_path, tokenizer_path=str(own)))
    assert changed.end_of_document == tokenizer.tokenizer.token_to_id("a") != tokens.end_of_document


def test_a_tokenizer_that_the_model_or_the_library_does_not_know_is_refused(folder, tmp_path):
    assert refusal(lambda: tokenize(config_of(folder, tmp_path), model_vocab_size=257)).field == "model.vocab_size"
    broken = config_of(folder, tmp_path, tokenizer_path=str(folder / "a.txt"))
    assert refusal(lambda: tokenize(broken)).field == "data.tokenizer_path"


@pytest.mark.parametrize(
    ("counts", "entropy"),
    [([1, 1, 1, 1], math.log(4)), ([5, 0, 0], 0.0), ([3, 1], 0.75 * math.log(4 / 3) + 0.25 * math.log(4))],
)
def test_unigram_entropy(counts, entropy):
    assert unigram_entropy(np.array(counts)) == pytest.approx(entropy)


def test_random_tokens_depend_on_the_seed_alone(tmp_path):
    def tokens(cache: str, seed: int):
        return random_tokens(num_tokens=5000, vocab_size=50, seed=seed, cache_dir=tmp_path / cache)

    one, same, other = tokens("a", 1), tokens("b", 1), tokens("a", 2)
    assert all_of(one).tolist() == all_of(same).tolist() != all_of(other).tolist()
    assert set(all_of(one).tolist()) == set(range(50))
    assert one.unigram_entropy == pytest.approx(math.log(50), abs=0.02)
    assert one.document_ends.tolist() == [5000]


@pytest.mark.parametrize("vocab_size", [2**16, 2**16 + 1])
def test_random_tokens_of_large_vocabularies(tmp_path, vocab_size):
    tokens = all_of(random_tokens(num_tokens=200_000, vocab_size=vocab_size, seed=0, cache_dir=tmp_path))
    assert vocab_size - 100 < tokens.max() < vocab_size
