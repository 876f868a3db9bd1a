"""The tokens that runs make for themselves: found in the cache, or made in this process and kept there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.config.data import DataConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.tokens.manifest import TOKENIZER, Manifest, write_manifest
from orchestrator.tokens.megatron import token_dtype
from orchestrator.tokens.store import TokenStore, open_tokens
from orchestrator.tokens.writer import ShardWriter, file_sha256
from orchestrator.worker.data.cache import cache_key, cached_folder
from orchestrator.worker.data.corpus import Corpus
from orchestrator.worker.data.documents import Defect
from orchestrator.worker.data.encode import Encoding
from orchestrator.worker.data.shards import ShardFolder, bad_documents, clear, unigram_entropy
from orchestrator.worker.data.tokenizer import (
    LIBRARY,
    LoadedTokenizer,
    copy_tokenizer,
    load_tokenizer,
    texts_of,
    train_tokenizer,
)

FORMAT = 2
SYNTHETIC_AT_ONCE = 2**20
_FIELD = "data.cache_dir"


def obtain_tokenizer(config: DataConfig, corpus: Corpus, *, model_vocab_size: int) -> LoadedTokenizer:
    """The tokenizer that ``config`` names, or the cached or newly trained one of ``corpus``.

    Raises:
        ConfigurationError: the file cannot be read, or has ids the model's embedding does not have.
    """
    own = Path(config.tokenizer_path).expanduser() if config.tokenizer_path else None
    loaded = _trained(config, corpus) if own is None else load_tokenizer(own)
    if loaded.vocab_size > model_vocab_size:
        message = f"the tokenizer {loaded.path} has {loaded.vocab_size} ids, model.vocab_size is {model_vocab_size}"
        fix = f"set model.vocab_size to at least {loaded.vocab_size}"
        raise ConfigurationError([error("tokenizer-vocabulary", "model.vocab_size", message, fix)])
    return loaded


def tokens_of_text(corpus: Corpus, tokenizer: LoadedTokenizer, cache_dir: Path) -> TokenStore:
    """The tokens of ``corpus``, each document followed by the end-of-text token; from the cache if they are there.

    Raises:
        ConfigurationError: a file is not UTF-8 text.
    """
    end = tokenizer.end_of_text
    shape = {"format": FORMAT, "corpus": corpus.fingerprint, "tokenizer": file_sha256(tokenizer.path), "end_of_document": end}

    def build(folder: Path) -> None:
        copy_tokenizer(tokenizer.path, folder)
        encoding = Encoding(
            tokenizer=folder / TOKENIZER,
            vocab_size=tokenizer.vocab_size,
            end_of_document=end,
            dtype=token_dtype(tokenizer.vocab_size),
        )
        shards = ShardFolder(folder, encoding)
        shards.fill(lambda _: corpus.chunks(), shard_tokens=None, processes=1)
        _require_text(folder)
        shards.finish(made_from={"root": str(corpus.root), **shape})
        clear(folder)

    return _cached(cache_dir, shape, build)


def random_tokens(*, num_tokens: int, vocab_size: int, seed: int, cache_dir: Path) -> TokenStore:
    """One document of ``num_tokens`` uniformly random tokens that depend on nothing but the arguments."""
    shape = {"format": FORMAT, "num_tokens": num_tokens, "vocab_size": vocab_size, "seed": seed}

    def build(folder: Path) -> None:
        generator = np.random.default_rng(seed)
        counts = np.zeros(vocab_size, dtype=np.int64)
        with ShardWriter(folder / "shard-00000", dtype=token_dtype(vocab_size)) as writer:
            for start in range(0, num_tokens, SYNTHETIC_AT_ONCE):
                stop = min(start + SYNTHETIC_AT_ONCE, num_tokens)
                tokens = generator.integers(0, vocab_size, size=stop - start)
                counts += np.bincount(tokens, minlength=vocab_size)
                writer.write(tokens, np.array([len(tokens)]), ends_document=stop == num_tokens)
            shard = writer.close()
        manifest = Manifest(
            dtype=token_dtype(vocab_size).name,
            vocab_size=vocab_size,
            end_of_document=None,
            unigram_entropy=unigram_entropy(counts),
            tokenizer_sha256=None,
            shards=(shard,),
            made_from=shape,
        )
        write_manifest(folder, manifest)

    return _cached(cache_dir, shape, build)


def _trained(config: DataConfig, corpus: Corpus) -> LoadedTokenizer:
    shape = {
        "kind": "byte-level BPE",
        "corpus": corpus.fingerprint,
        "vocab_size": config.tokenizer_vocab_size,
        "library": LIBRARY,
    }
    folder = Path(config.cache_dir).expanduser() / "tokenizers" / cache_key(shape)

    def build(scratch: Path) -> None:
        train_tokenizer(texts_of(corpus.chunks(), ("text",)), config.tokenizer_vocab_size, scratch / TOKENIZER)

    cached_folder(folder, is_complete=lambda path: (path / TOKENIZER).is_file(), build=build)
    return load_tokenizer(folder)


def _cached(cache_dir: Path, shape: dict[str, Any], build: Callable[[Path], None]) -> TokenStore:
    folder = cache_dir.expanduser() / "tokens" / cache_key(shape)
    cached_folder(folder, is_complete=_is_complete, build=build)
    return open_tokens(folder, field=_FIELD)


def _is_complete(folder: Path) -> bool:
    try:
        open_tokens(folder, field=_FIELD)
    except ConfigurationError:
        return False
    return True


def _require_text(folder: Path) -> None:
    """Refuse a corpus with a file that is no text: what a run trains on is what it was given."""
    for entry in bad_documents(folder):
        if entry["defect"] == Defect.invalid_utf8:
            message = f"{entry['place']} is not UTF-8 text: {entry['detail']}"
            fix = "convert the file to UTF-8, or leave it out: data.file_suffixes"
            raise ConfigurationError([error("data-text", "data.path", message, fix)])
