"""The token file: every token of the corpus in one flat array on disk, with an index that says what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.data.cache import cache_key, cached_folder
from orchestrator.worker.data.corpus import Corpus, Piece
from orchestrator.worker.data.tokenizer import LoadedTokenizer

FORMAT = 1
TOKENS = "tokens.bin"
INDEX = "index.json"
PIECES_AT_ONCE = 32
SYNTHETIC_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIndex:
    """What a token file holds. ``unigram_entropy`` is that of the token frequencies, in nats a token."""

    dtype: str
    num_tokens: int
    num_documents: int
    vocab_size: int
    unigram_entropy: float
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A complete token file. ``built`` says whether this process made it just now."""

    folder: Path
    index: TokenIndex
    built: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        return self.index.num_tokens

    @property
    def document_ends(self) -> NDArray[np.int64]:
        """Where each document ends: not kept, so the whole file is one."""
        return np.array([self.index.num_tokens], dtype=np.int64)

    @property
    def answer_starts(self) -> NDArray[np.int32] | None:
        """The loss is on every token."""
        return None

    @property
    def identity(self) -> str:
        """A hash of the tokens."""
        return self.index.sha256

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens from ``start`` up to ``stop``."""
        return np.asarray(self.tokens()[start:stop], dtype=np.int64)

    def tokens(self) -> NDArray[Any]:
        """All tokens, mapped from disk, of ``index.dtype``, shape (num_tokens,)."""
        return np.memmap(self.folder / TOKENS, dtype=self.index.dtype, mode="r", shape=(self.index.num_tokens,))


def token_file_of_text(corpus: Corpus, tokenizer: LoadedTokenizer, cache_dir: Path) -> TokenFile:
    """The tokens of ``corpus``, each document followed by the end-of-text token; from the cache if they are there."""
    shape = {
        "format": FORMAT,
        "corpus": corpus.fingerprint,
        "tokenizer": hashlib.sha256(tokenizer.path.read_bytes()).hexdigest(),
    }
    return _cached(cache_dir, shape, vocab_size=tokenizer.vocab_size, chunks=_encoded(corpus, tokenizer))


def synthetic_token_file(*, num_tokens: int, vocab_size: int, seed: int, cache_dir: Path) -> TokenFile:
    """``num_tokens`` uniformly random tokens that depend on nothing but the arguments."""
    shape = {"format": FORMAT, "num_tokens": num_tokens, "vocab_size": vocab_size, "seed": seed}

    def chunks() -> Iterator[tuple[NDArray[np.int64], int]]:
        generator = np.random.default_rng(seed)
        for start in range(0, num_tokens, SYNTHETIC_AT_ONCE):
            yield generator.integers(0, vocab_size, size=min(SYNTHETIC_AT_ONCE, num_tokens - start)), 0

    return _cached(cache_dir, shape, vocab_size=vocab_size, chunks=chunks())


def unigram_entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of the distribution that ``counts`` (one a token id) estimate, in nats."""
    total = int(counts.sum())
    if total == 0:
        return 0.0
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum())


def _cached(
    cache_dir: Path, shape: dict[str, Any], *, vocab_size: int, chunks: Iterable[tuple[NDArray[np.int64], int]]
) -> TokenFile:
    folder = cache_dir.expanduser() / "tokens" / cache_key(shape)
    built = cached_folder(folder, is_complete=_is_complete, build=lambda scratch: _write(scratch, vocab_size, chunks))
    return TokenFile(folder=folder, index=_read_index(folder), built=built)


def _write(folder: Path, vocab_size: int, chunks: Iterable[tuple[NDArray[np.int64], int]]) -> None:
    """Write chunks of (token ids, documents that end in them), and the index last."""
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    counts = np.zeros(vocab_size, dtype=np.int64)
    digest = hashlib.sha256()
    num_documents = 0
    with (folder / TOKENS).open("wb") as file:
        for ids, documents in chunks:
            counts += np.bincount(ids, minlength=vocab_size)
            data = ids.astype(dtype).tobytes()
            digest.update(data)
            file.write(data)
            num_documents += documents
    index = TokenIndex(
        dtype=dtype.name,
        num_tokens=int(counts.sum()),
        num_documents=num_documents,
        vocab_size=vocab_size,
        unigram_entropy=unigram_entropy(counts),
        sha256=digest.hexdigest(),
    )
    (folder / INDEX).write_text(json.dumps(asdict(index), indent=2) + "\n", encoding="utf-8")


def _encoded(corpus: Corpus, tokenizer: LoadedTokenizer) -> Iterator[tuple[NDArray[np.int64], int]]:
    pieces = corpus.pieces()
    end_of_text = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    while group := list(islice(pieces, PIECES_AT_ONCE)):
        encodings = tokenizer.tokenizer.encode_batch([piece.text for piece in group], add_special_tokens=False)
        ids: list[int] = []
        for piece, encoding in zip(group, encodings, strict=True):
            ids += encoding.ids + (end_of_text if piece.ends_document else [])
        yield np.array(ids, dtype=np.int64), _num_documents(group)


def _num_documents(group: list[Piece]) -> int:
    return sum(piece.ends_document for piece in group)


def _is_complete(folder: Path) -> bool:
    """Whether the index is there and the tokens have the size it says."""
    if not (folder / INDEX).is_file():
        return False
    index = _read_index(folder)
    size = index.num_tokens * np.dtype(index.dtype).itemsize
    return (folder / TOKENS).is_file() and (folder / TOKENS).stat().st_size == size


def _read_index(folder: Path) -> TokenIndex:
    return TokenIndex(**json.loads((folder / INDEX).read_text(encoding="utf-8")))
