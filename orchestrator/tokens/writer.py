"""Writes one pair of token files: under scratch names first, so that a name that is there is a whole file."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.tokens.manifest import Shard
from orchestrator.tokens.megatron import write_index

_PART_BYTES = 2**22


def answers_path(prefix: Path) -> Path:
    """Where the answers of the documents of ``prefix`` begin: an int32 array, one entry a document."""
    return prefix.with_name(f"{prefix.name}.answers.npy")


class ShardWriter:
    """Takes tokens as they come; memory holds the lengths of the documents, never the tokens.

    ``close`` gives the files their names, the index last.
    """

    def __init__(self, prefix: Path, *, dtype: np.dtype[Any], with_answers: bool = False) -> None:
        self._prefix, self._dtype, self._with_answers = prefix, dtype, with_answers
        self._digest = hashlib.sha256()
        self._lengths: list[NDArray[np.int64]] = []
        self._answers: list[NDArray[np.int32]] = []
        self._open_length: int | None = None
        self.num_tokens = 0
        self._file = self._scratch("bin").open("wb")

    @property
    def is_within_document(self) -> bool:
        """Whether the last document has not ended yet."""
        return self._open_length is not None

    def write(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        *,
        ends_document: bool = True,
        answer_starts: NDArray[np.int32] | None = None,
    ) -> None:
        """Append documents of ``lengths`` tokens, which ``tokens`` joins.

        The first continues the document that the last call left open; ``ends_document=False`` leaves the last one open.
        ``answer_starts``, of a shard with answers, has one entry for each document: whole ones only.
        """
        assert int(lengths.sum()) == len(tokens)
        assert self._with_answers == (answer_starts is not None)
        data = tokens.astype(self._dtype).tobytes()
        self._digest.update(data)
        self._file.write(data)
        self.num_tokens += len(tokens)
        if answer_starts is not None:
            assert len(answer_starts) == len(lengths) and ends_document and self._open_length is None
            self._answers.append(answer_starts.astype(np.int32))
        if len(lengths) == 0:
            return
        lengths = lengths.astype(np.int64)
        lengths[0] += self._open_length or 0
        self._open_length = None if ends_document else int(lengths[-1])
        self._lengths.append(lengths if ends_document else lengths[:-1])

    def close(self, *, bad_documents: int = 0) -> Shard:
        """Complete the files and return what they hold."""
        if self._open_length is not None:
            self._lengths.append(np.array([self._open_length], dtype=np.int64))
        lengths = np.concatenate([np.empty(0, dtype=np.int64), *self._lengths])
        _synced_and_closed(self._file)
        write_index(self._scratch("idx"), lengths, self._dtype)
        names = ["bin", "idx"]
        if self._with_answers:
            save_array(self._scratch("answers.npy"), np.concatenate([np.empty(0, dtype=np.int32), *self._answers]))
            names.insert(1, "answers.npy")
        digests = {name: file_sha256(self._scratch(name)) for name in names[1:]}
        for name in names:
            with self._scratch(name).open("rb") as file:
                os.fsync(file.fileno())
            self._scratch(name).rename(self._prefix.with_name(f"{self._prefix.name}.{name}"))
        return Shard(
            name=self._prefix.name,
            tokens=self.num_tokens,
            documents=len(lengths),
            sha256=self._digest.hexdigest(),
            index_sha256=digests["idx"],
            answers_sha256=digests.get("answers.npy"),
            bad_documents=bad_documents,
        )

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """What was not closed stays under its scratch name, incomplete."""
        self._file.close()

    def _scratch(self, name: str) -> Path:
        return self._prefix.with_name(f".{self._prefix.name}.{name}")


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file. numpy itself does not say why it could not write to a file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    path.write_bytes(buffer.getbuffer())


def file_sha256(path: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _synced_and_closed(file: io.BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
