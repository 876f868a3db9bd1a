"""Opens token files as one stream of tokens, whoever made them."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.tokens.manifest import MANIFEST, TOKENIZER, Manifest, Shard, read_manifest
from orchestrator.tokens.megatron import MegatronFile, bin_path, idx_path, open_megatron, unreadable
from orchestrator.tokens.writer import answers_path, file_sha256

UNFINISHED = "preparing"
"""In a folder of prepared tokens: what is needed to go on with it. It goes when the folder is whole."""
MOST_MAPPED = 256
"""Token files that a process has mapped at a time, of all its stores: each takes a file descriptor, and 1,024 are usual."""
_SAMPLE_BYTES = 2**16
_SAMPLES = 256


@dataclass(frozen=True, kw_only=True)
class TokenStore:
    """All tokens of a folder of ``prepare``, or of one pair of Megatron files, as one stream.

    Nothing is read until it is asked for: a store of ten thousand files opens with a look at their sizes. Tokens without a
    manifest have no ``vocab_size``, ``tokenizer_path``, ``end_of_document`` and ``unigram_entropy``.
    """

    path: Path
    files: tuple[MegatronFile, ...]
    identity: str
    """Changes when a token does: a hash of the checksums. Without a manifest it stands on sizes and samples of the files."""
    manifest: Manifest | None = None
    _opened: object = field(default_factory=object, repr=False, compare=False)
    """Tells the maps of this store from those of one that was opened before its files were replaced."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream."""
        return self._starts[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tokens on disk."""
        return sum(file.num_bytes for file in self.files)

    @cached_property
    def num_documents(self) -> int:
        """Documents of the stream."""
        return sum(file.num_documents for file in self.files)

    @cached_property
    def document_ends(self) -> NDArray[np.int64]:
        """Where each document ends: offsets in the stream, ascending, shape (num_documents,); 8 bytes a document.

        Raises:
            ConfigurationError: an index contradicts itself.
        """
        ends = [start + file.document_ends() for start, file in zip(self._starts, self.files, strict=False)]
        return np.concatenate([np.empty(0, dtype=np.int64), *ends])

    @cached_property
    def answer_starts(self) -> NDArray[np.int32] | None:
        """For each document the tokens that come before its answer; None where the loss is on all tokens."""
        if self.manifest is None or not any(shard.has_answers for shard in self.manifest.shards):
            return None
        starts: list[NDArray[np.int32]] = [np.load(answers_path(file.prefix)) for file in self.files]
        return np.concatenate(starts)

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below this."""
        return None if self.manifest is None else self.manifest.vocab_size

    @property
    def end_of_document(self) -> int | None:
        """The token after each document."""
        return None if self.manifest is None else self.manifest.end_of_document

    @property
    def unigram_entropy(self) -> float | None:
        """Entropy of the token frequencies, in nats a token."""
        return None if self.manifest is None else self.manifest.unigram_entropy

    @property
    def tokenizer_path(self) -> Path | None:
        """The ``tokenizer.json`` that made the tokens, kept beside them."""
        if self.manifest is None or self.manifest.tokenizer_sha256 is None:
            return None
        return self.path / TOKENIZER

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens from ``start`` to ``stop`` of the stream, shape (stop - start,), read over the borders of files."""
        assert 0 <= start <= stop <= self.num_tokens
        parts: list[NDArray[np.int64]] = []
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            offset = start - self._starts[number]
            part = _mapped(self.files[number], self._opened)[offset : offset + stop - start]
            parts.append(part.astype(np.int64))
            start += len(part)
            number += 1
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def verify(self, advanced: Callable[[int], None] = lambda _: None) -> list[Finding]:
        """Read every file and compare it with its checksum and index; ``advanced`` gets the bytes of each file read.

        Without a manifest there is no checksum, and the index alone is checked.
        """
        findings: list[Finding] = []
        for number, file in enumerate(self.files):
            try:
                file.document_ends()
            except ConfigurationError as problem:
                findings += problem.findings
            if self.manifest is not None:
                findings += _checksum_findings(file.prefix, self.manifest.shards[number])
            advanced(file.num_bytes)
        tokenizer = self.tokenizer_path
        if tokenizer is not None and self.manifest is not None:
            findings += _changed(tokenizer, self.manifest.tokenizer_sha256)
        return findings

    @cached_property
    def _starts(self) -> list[int]:
        """Where each file begins in the stream, and where the stream ends."""
        return [0, *np.cumsum([file.num_tokens for file in self.files], dtype=np.int64).tolist()]


@lru_cache(maxsize=MOST_MAPPED)
def _mapped(file: MegatronFile, _opened: object) -> NDArray[Any]:
    """The tokens of a file, mapped once for each opening of a store."""
    return file.tokens()


def expanded(path: str | Path) -> Path:
    """``path`` with the home directory that it begins with; of a user who is not known, as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's raises for unknown users


def open_tokens(path: str | Path, *, field: str = "data.path") -> TokenStore:
    """Open a folder of ``prepare``, an entry of the cache, or Megatron files by their common prefix.

    ``field`` is the option that named ``path``.

    Raises:
        ConfigurationError: there are no such tokens, or files of them cannot be read, are cut or do not belong together.
    """
    path = expanded(path)
    try:
        if (path / MANIFEST).is_file():
            return _open_folder(path, field)
        if idx_path(path).is_file() or bin_path(path).is_file():
            file = open_megatron(path, field=field)
            return TokenStore(path=path, files=(file,), identity=_sampled_identity(file))
        raise ConfigurationError([_missing(path, field)])
    except OSError as problem:
        message = f"{problem.filename or path} cannot be read: {problem.strerror}"
        raise ConfigurationError([error("token-files", field, message, "have it made readable, or name others")]) from None


def _open_folder(path: Path, field: str) -> TokenStore:
    manifest = read_manifest(path, field=field)
    files = tuple(_open_shard(path, shard, manifest, field) for shard in manifest.shards)
    checksums = [(shard.sha256, shard.index_sha256, shard.answers_sha256) for shard in manifest.shards]
    return TokenStore(path=path, files=files, identity=_hash_of(checksums), manifest=manifest)


def _open_shard(folder: Path, shard: Shard, manifest: Manifest, field: str) -> MegatronFile:
    prefix = folder / shard.name
    file = open_megatron(prefix, field=field)
    said = (shard.tokens, shard.documents, manifest.dtype)
    found = (file.num_tokens, file.num_documents, file.dtype.name)
    if said != found:
        problem = f"holds (tokens, documents, dtype) {found}, but {said} by {MANIFEST}"
        raise unreadable(idx_path(prefix), problem, field=field)
    if shard.has_answers and not answers_path(prefix).is_file():
        raise unreadable(answers_path(prefix), "is not there", field=field)
    return file


def _missing(path: Path, field: str) -> Finding:
    if (path / UNFINISHED).is_dir():
        message = f"{path} is not complete: orchestrator prepare has not come to its end there"
        return error("token-files", field, message, "run the same prepare command again; it goes on where it was")
    if path.suffix in (".bin", ".idx"):
        return error("token-files", field, f"{path} is one of two files", f"name both by their prefix: {path.with_suffix('')}")
    prefixes = sorted(file.with_suffix("").name for file in path.glob("*.idx")) if path.is_dir() else []
    if prefixes:
        message = f"{path} has Megatron files, but no {MANIFEST}"
        return error(
            "token-files", field, message, f"name one by its prefix: {', '.join(str(path / name) for name in prefixes[:3])}"
        )
    message = f"{path} {'has no tokens' if path.exists() else 'is not there'}"
    return error("token-files", field, message, "name a folder of orchestrator prepare, or Megatron files without .bin or .idx")


def _checksum_findings(prefix: Path, shard: Shard) -> list[Finding]:
    files = {bin_path(prefix): shard.sha256, idx_path(prefix): shard.index_sha256, answers_path(prefix): shard.answers_sha256}
    return [finding for path, checksum in files.items() if checksum is not None for finding in _changed(path, checksum)]


def _changed(path: Path, checksum: str | None) -> list[Finding]:
    if path.is_file() and file_sha256(path) == checksum:
        return []
    message = f"{path} {'is not what was written: its checksum differs' if path.is_file() else 'is not there'}"
    return [error("token-files", str(path), message, "copy it again, or prepare the tokens anew into another folder")]


def _sampled_identity(file: MegatronFile) -> str:
    return _hash_of([_sampled(path) for path in (bin_path(file.prefix), idx_path(file.prefix))])


def _sampled(path: Path) -> tuple[int, str]:
    """The size of a file and a hash of evenly spread parts of it: reading terabytes at every start would take hours."""
    size = path.stat().st_size
    starts: Sequence[int] = range(0, size, _SAMPLE_BYTES)
    if len(starts) > _SAMPLES:
        starts = np.linspace(0, size - _SAMPLE_BYTES, _SAMPLES).astype(np.int64).tolist()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))
    return size, digest.hexdigest()


def _hash_of(parts: Sequence[Any]) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
