"""Writes the token files of a folder one after the other, and goes on where it was broken off.

Files and ``preparing/state.json`` are written under other names and renamed; the state follows its files. What is in the
folder when the process is killed is therefore whole, or is written again, byte for byte the same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.tokens.manifest import Manifest, Shard, write_manifest
from orchestrator.tokens.megatron import open_megatron
from orchestrator.tokens.store import UNFINISHED
from orchestrator.tokens.writer import ShardWriter, file_sha256, save_array
from orchestrator.worker.data.chunks import Chunk, Place, grouped
from orchestrator.worker.data.encode import Encoding, Read, encoded_in_order

BAD_DOCUMENTS = "bad_documents.jsonl"
_STATE = "state.json"
_COUNTS = "counts-{}.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the making of a folder has come: what is behind of file number ``file``, and what has been made of it all."""

    file: int
    disk_bytes: int
    tokens: int
    documents: int
    bad: Mapping[str, int]

    @property
    def num_bad(self) -> int:
        """Bad documents of every kind."""
        return sum(self.bad.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a folder holds so far. ``bad`` counts the bad documents by kind, ``bad_bytes`` is how long their list is."""

    shards: tuple[Shard, ...] = ()
    place: Place = field(default_factory=Place)
    read: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)
    bad_bytes: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the shards that are there."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def num_bad(self) -> int:
        """Bad documents of every kind."""
        return sum(self.bad.values())


class ShardFolder:
    """A folder that is being filled with tokens of ``encoding``."""

    def __init__(self, folder: Path, encoding: Encoding) -> None:
        """Go on with ``folder``, or begin.

        Raises:
            ConfigurationError: files that were complete have gone or changed their size.
        """
        self._folder, self._encoding = folder, encoding
        (folder / UNFINISHED).mkdir(exist_ok=True)
        self.state = read_state(folder)
        for shard in self.state.shards:
            open_megatron(folder / shard.name, field="prepare.output")
        counts = folder / UNFINISHED / _COUNTS.format(len(self.state.shards))
        self._counts: NDArray[np.int64] = (
            np.load(counts) if self.state.shards else np.zeros(encoding.vocab_size, dtype=np.int64)
        )

    def fill(
        self,
        chunks: Callable[[Place], Iterator[Chunk]],
        *,
        shard_tokens: int | None,
        processes: int,
        advanced: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """Make the tokens of ``chunks`` from where the folder has come to; a file ends at the first document after
        ``shard_tokens``, None = there is one. ``advanced`` may raise to give up; what was complete stays.
        """
        reads = encoded_in_order(grouped(chunks(self.state.place)), self._encoding, processes=processes)
        try:
            while self._one_shard(reads, shard_tokens, advanced):
                pass
        finally:
            reads.close()

    def finish(self, *, made_from: Mapping[str, Any]) -> Manifest:
        """Write the manifest: the folder is whole, and ``clear`` may take away what was needed to go on."""
        shards = self.state.shards
        manifest = Manifest(
            dtype=self._encoding.dtype.name,
            vocab_size=self._encoding.vocab_size,
            end_of_document=self._encoding.end_of_document,
            unigram_entropy=unigram_entropy(self._counts),
            tokenizer_sha256=file_sha256(self._encoding.tokenizer),
            shards=shards,
            made_from=made_from,
        )
        for scratch in self._folder.glob(".shard-*"):
            scratch.unlink()
        write_manifest(self._folder, manifest)
        return manifest

    def _one_shard(self, reads: Iterator[Read], shard_tokens: int | None, advanced: Callable[[Progress], None]) -> bool:
        """Write the next shard; return whether there was anything left to read."""
        first = next(reads, None)
        if first is None:
            return False
        state, counts = self.state, self._counts.copy()
        prefix = self._folder / f"shard-{len(state.shards):05d}"
        writer = ShardWriter(prefix, dtype=self._encoding.dtype, with_answers=self._encoding.has_answers)
        with writer, _BadList(self._folder / BAD_DOCUMENTS, state.bad_bytes) as bad_list:
            for read in chain([first], reads):
                encoded = read.encoded
                state = _after(state, read, bad_list)
                counts += np.bincount(encoded.tokens, minlength=len(counts))
                writer.write(
                    encoded.tokens,
                    encoded.lengths,
                    ends_document=encoded.ends_document,
                    answer_starts=encoded.answer_starts,
                )
                advanced(_progress(state, read, writer.num_tokens))
                if shard_tokens is not None and writer.num_tokens >= shard_tokens and not writer.is_within_document:
                    break
            if writer.num_tokens:
                shard = writer.close(bad_documents=state.num_bad - self.state.num_bad)
                state = replace(state, shards=(*state.shards, shard))
            self._keep(replace(state, bad_bytes=bad_list.end()), counts)
        return True

    def _keep(self, state: State, counts: NDArray[np.int64]) -> None:
        """Make what has been written part of the folder."""
        unfinished = self._folder / UNFINISHED
        number = len(state.shards)
        scratch = unfinished / f".{_COUNTS.format(number)}"
        save_array(scratch, counts)
        scratch.rename(unfinished / _COUNTS.format(number))
        write_whole(unfinished / _STATE, asdict(state))
        if number != len(self.state.shards):
            (unfinished / _COUNTS.format(len(self.state.shards))).unlink(missing_ok=True)
        self.state, self._counts = state, counts


def clear(folder: Path) -> None:
    """Take away what a whole folder no longer needs."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


class _BadList:
    """The list of bad documents, from where it was complete."""

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._start = path, start

    def __enter__(self) -> _BadList:
        self._file = self._path.open("ab")
        self._file.truncate(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._path.stat().st_size == 0:
            self._path.unlink()

    def add(self, entry: Mapping[str, str]) -> None:
        # names of files and of fields may have half characters, which JSON can spell and UTF-8 cannot
        self._file.write(json.dumps(entry, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")

    def end(self) -> int:
        """How long the list is, on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def bad_documents(folder: Path) -> Iterator[dict[str, str]]:
    """The bad documents of a folder, in the order of the input."""
    path = folder / BAD_DOCUMENTS
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def unigram_entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of the distribution that ``counts`` (one a token id) estimate, in nats."""
    total = int(counts.sum())
    if total == 0:
        return 0.0
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum())


def write_whole(path: Path, values: Any) -> None:
    """Write JSON under another name, and rename it when it is on the disk."""
    scratch = path.with_name(f".{path.name}")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(values, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)


def read_state(folder: Path) -> State:
    """How far a folder has come."""
    path = folder / UNFINISHED / _STATE
    if not path.is_file():
        return State()
    values = json.loads(path.read_text(encoding="utf-8"))
    shards: Sequence[Mapping[str, Any]] = values.pop("shards")
    return State(shards=tuple(Shard(**shard) for shard in shards), place=Place(**values.pop("place")), **values)


def _after(state: State, read: Read, bad_list: _BadList) -> State:
    bad = dict(state.bad)
    for entry in read.encoded.bad:
        bad_list.add(entry.to_dict())
        bad[entry.defect] = bad.get(entry.defect, 0) + 1
    return replace(state, place=read.after, read=state.read + read.encoded.num_read, bad=bad)


def _progress(state: State, read: Read, open_tokens: int) -> Progress:
    return Progress(
        file=read.after.file,
        disk_bytes=read.disk_bytes,
        tokens=state.num_tokens + open_tokens,
        documents=state.read,
        bad=state.bad,
    )
