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
from orchestrator.errors import ConfigurationError
from orchestrator.worker.data.corpus import find_corpus
from orchestrator.worker.data.tokenizer import END_OF_TEXT, obtain_tokenizer
from orchestrator.worker.data.tokens import synthetic_token_file, token_file_of_text, unigram_entropy

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
    return token_file_of_text(corpus, tokenizer, Path(config.cache_dir)), tokenizer


def test_the_tokens_give_back_every_document_in_sorted_order(folder, tmp_path):
    token_file, tokenizer = tokenize(config_of(folder, tmp_path))
    text = tokenizer.tokenizer.decode(token_file.tokens().tolist(), skip_special_tokens=False)
    assert text.split(END_OF_TEXT) == [STORIES["a.txt"], STORIES["b.txt"], "a third\n", ""]
    assert token_file.index.num_documents == 3


def test_an_end_of_text_that_is_spelt_out_in_the_text_is_text(tmp_path):
    file = tmp_path / "trap.txt"
    file.write_text(f"before {END_OF_TEXT} after\n" * 5)
    token_file, tokenizer = tokenize(config_of(file, tmp_path))
    assert token_file.tokens().tolist().count(tokenizer.end_of_text) == 1


def test_the_second_start_finds_everything_made(folder, tmp_path):
    config = config_of(folder, tmp_path)
    first, tokenizer = tokenize(config)
    changed = tokenizer.path.stat().st_mtime_ns
    second, again = tokenize(config)
    assert (first.built, second.built) == (True, False)
    assert again.path.stat().st_mtime_ns == changed
    assert second.index == first.index


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
    assert second.built
    assert second.index.sha256 != first.index.sha256


def test_a_token_file_that_was_cut_is_made_again(folder, tmp_path):
    config = config_of(folder, tmp_path)
    first, _ = tokenize(config)
    os.truncate(first.folder / "tokens.bin", 10)
    second, _ = tokenize(config)
    assert second.built
    assert len(second.tokens()) == first.index.num_tokens


def test_max_bytes_cuts_between_characters(folder, tmp_path):
    corpora = [find_corpus(config_of(folder, tmp_path, max_bytes=size)) for size in (20, 21)]
    texts = ["".join(piece.text for piece in corpus.pieces()) for corpus in corpora]
    assert texts == ["the first story, na", "the first story, naï"]


def test_processes_that_start_together_make_the_tokens_once(folder, tmp_path):
    config = config_of(folder, tmp_path)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        built = pool.map(was_built, [config] * 3)
    assert sorted(built) == [False, False, True]


def was_built(config: DataConfig) -> bool:
    return tokenize(config)[0].built


def test_a_disk_without_locks_is_refused(folder, tmp_path, monkeypatch):
    def no_locks(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert refusal(lambda: tokenize(config_of(folder, tmp_path))) == "data.cache_dir"


def test_this_pythons_library_is_found_without_installed_packages_and_tests():
    corpus = find_corpus(DataConfig(source=DataSource.python_stdlib))
    names = {str(file.relative_to(corpus.root)) for file in corpus.files}
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= names
    assert not any({"site-packages", "test"} & set(name.split("/")) for name in names)
    assert corpus.num_bytes > 2**20


def refusal(action) -> str:
    with pytest.raises(ConfigurationError) as caught:
        action()
    (finding,) = caught.value.findings
    assert finding.fix
    return finding.field


def test_text_that_cannot_be_used_is_refused(folder, tmp_path):
    (folder / "latin.txt").write_bytes("naïve".encode("latin-1"))
    assert refusal(lambda: tokenize(config_of(folder, tmp_path))) == "data.path"
    assert refusal(lambda: find_corpus(config_of(tmp_path / "missing", tmp_path))) == "data.path"
    assert refusal(lambda: find_corpus(config_of(folder, tmp_path, file_suffixes=[".rst"]))) == "data.path"


def test_a_tokenizer_of_ones_own_is_used(folder, tmp_path):
    _, trained = tokenize(config_of(folder, tmp_path))
    own = tmp_path / "mine.json"
    own.write_bytes(trained.path.read_bytes())
    token_file, tokenizer = tokenize(config_of(folder, tmp_path, tokenizer_path=str(own)))
    assert tokenizer.path == own
    assert token_file.index.vocab_size == Tokenizer.from_file(str(own)).get_vocab_size()


def test_a_tokenizer_that_the_model_or_the_library_does_not_know_is_refused(folder, tmp_path):
    assert refusal(lambda: tokenize(config_of(folder, tmp_path), model_vocab_size=257)) == "model.vocab_size"
    broken = config_of(folder, tmp_path, tokenizer_path=str(folder / "a.txt"))
    assert refusal(lambda: tokenize(broken)) == "data.tokenizer_path"


@pytest.mark.parametrize(
    ("counts", "entropy"),
    [([1, 1, 1, 1], math.log(4)), ([5, 0, 0], 0.0), ([3, 1], 0.75 * math.log(4 / 3) + 0.25 * math.log(4))],
)
def test_unigram_entropy(counts, entropy):
    assert unigram_entropy(np.array(counts)) == pytest.approx(entropy)


def test_random_tokens_depend_on_the_seed_alone(tmp_path):
    def tokens(cache: str, seed: int):
        return synthetic_token_file(num_tokens=5000, vocab_size=50, seed=seed, cache_dir=tmp_path / cache)

    one, same, other = tokens("a", 1), tokens("b", 1), tokens("a", 2)
    assert one.tokens().tolist() == same.tokens().tolist() != other.tokens().tolist()
    assert set(one.tokens().tolist()) == set(range(50))
    assert one.index.unigram_entropy == pytest.approx(math.log(50), abs=0.02)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_large_vocabularies_get_wider_tokens(tmp_path, vocab_size, dtype):
    token_file = synthetic_token_file(num_tokens=200_000, vocab_size=vocab_size, seed=0, cache_dir=tmp_path)
    assert token_file.index.dtype == dtype
    assert token_file.tokens().max() < vocab_size
    assert token_file.tokens().max() > vocab_size - 100
