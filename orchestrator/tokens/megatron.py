"""Megatron's memory-mapped token files: ``PREFIX.bin`` holds the tokens, ``PREFIX.idx`` says where documents end.

The index is little-endian: the magic ``MMIDIDX\\0\\0``; a uint64 version, 1; a uint8 code of the dtype; uint64 numbers of
sequences and of entries of the document index; then int32 sizes (tokens) and int64 pointers (bytes) of the sequences, and the
int64 document index: document ``i`` is made of the sequences ``index[i]`` to ``index[i + 1]``. Megatron-LM's multimodal files
append one byte a sequence. Source: ``megatron/core/datasets/indexed_dataset.py`` of Megatron-LM, and the file of the same
name in Megatron-DeepSpeed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16", 9: "uint32", 10: "uint64"}
"""Codes of the dtypes a token can have; 6 and 7 are floating point, 9 and 10 are Megatron-DeepSpeed's own."""
LONGEST_SEQUENCE = 2**30
"""Tokens. Sizes are int32, so a longer document is written as several sequences."""

_HEADER = struct.Struct("<9sQBQQ")
_CODES = {name: code for code, name in DTYPES.items()}


def bin_path(prefix: Path) -> Path:
    """The tokens of ``prefix``."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """The index of ``prefix``."""
    return prefix.with_name(f"{prefix.name}.idx")


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The dtype Megatron gives tokens that are below ``vocab_size``."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)


def unreadable(path: Path, problem: str, *, field: str) -> ConfigurationError:
    """The refusal of a token file."""
    fix = "prepare or copy the tokens again, both files of them"
    return ConfigurationError([error("token-files", field, f"{path} {problem}", fix)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronFile:
    """One pair of files, whose sizes agree with each other."""

    prefix: Path
    dtype: np.dtype[Any]
    num_tokens: int
    num_sequences: int
    num_documents: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the ``.bin`` file."""
        return self.num_tokens * self.dtype.itemsize

    def tokens(self) -> NDArray[Any]:
        """All tokens, mapped from disk, shape (num_tokens,)."""
        if self.num_tokens == 0:
            return np.empty(0, dtype=self.dtype)
        return np.memmap(bin_path(self.prefix), dtype=self.dtype, mode="r", shape=(self.num_tokens,))

    def document_ends(self) -> NDArray[np.int64]:
        """Where each document ends, in tokens from the beginning of the file: ascending, shape (num_documents,).

        Raises:
            ConfigurationError: the index contradicts itself.
        """
        sizes, pointers, documents = self._arrays()
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
        if sizes.size and int(sizes.min()) < 0:
            raise unreadable(idx_path(self.prefix), "has a sequence of negative size", field=str(self.prefix))
        if not np.array_equal(pointers, ends[:-1] * self.dtype.itemsize):
            raise unreadable(idx_path(self.prefix), "does not list its sequences one after the other", field=str(self.prefix))
        if np.any(np.diff(documents) < 0):
            raise unreadable(idx_path(self.prefix), "has documents that end before they begin", field=str(self.prefix))
        return ends[documents[1:]]

    def _arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        path = idx_path(self.prefix)
        sizes = _mapped(path, "<i4", self.num_sequences, _HEADER.size)
        pointers = _mapped(path, "<i8", self.num_sequences, _HEADER.size + 4 * self.num_sequences)
        documents = _mapped(path, "<i8", self.num_documents + 1, _HEADER.size + 12 * self.num_sequences)
        return sizes, pointers, documents


def open_megatron(prefix: Path, *, field: str) -> MegatronFile:
    """Read the header of ``PREFIX.idx`` and compare the sizes of both files with it: constant time, whatever they hold.

    ``field`` is the option that named the files.

    Raises:
        ConfigurationError: a file is missing, cut, of another format, or they do not belong together.
    """
    index, tokens = idx_path(prefix), bin_path(prefix)
    for path in (index, tokens):
        if not path.is_file():
            raise unreadable(path, "is not there", field=field)
    with index.open("rb") as file:
        header = file.read(_HEADER.size)
    if header[:9] != MAGIC or len(header) < _HEADER.size:
        raise unreadable(index, "is no index of Megatron's memory-mapped format", field=field)
    _, version, code, num_sequences, num_entries = _HEADER.unpack(header)
    if version != VERSION:
        raise unreadable(index, f"is of version {version} of the format; {VERSION} is known", field=field)
    if code not in DTYPES:
        raise unreadable(index, f"has tokens of the unknown or fractional type {code}", field=field)
    expected = _HEADER.size + 12 * num_sequences + 8 * num_entries
    found = index.stat().st_size
    if num_entries == 0 or found not in (expected, expected + num_sequences):
        raise unreadable(index, f"has {found} bytes, but {expected} by its header", field=field)
    last_entry = int(_mapped(index, "<i8", num_entries, _HEADER.size + 12 * num_sequences)[-1])
    if last_entry != num_sequences:
        raise unreadable(index, f"ends its last document at sequence {last_entry} of {num_sequences}", field=field)
    dtype = np.dtype(DTYPES[code]).newbyteorder("<")
    end_bytes = _end_of_tokens(index, num_sequences, dtype.itemsize)
    if tokens.stat().st_size != end_bytes:
        raise unreadable(tokens, f"has {tokens.stat().st_size} bytes, but {end_bytes} by {index.name}", field=field)
    return MegatronFile(
        prefix=prefix,
        dtype=dtype,
        num_tokens=end_bytes // dtype.itemsize,
        num_sequences=num_sequences,
        num_documents=num_entries - 1,
    )


def write_index(path: Path, lengths: NDArray[np.int64], dtype: np.dtype[Any]) -> None:
    """Write the index of documents of ``lengths`` tokens that stand one after the other in the ``.bin`` file."""
    # document i is cut into as many sequences as its length needs; a document without tokens is one empty sequence
    pieces = np.maximum(1, -(-lengths // LONGEST_SEQUENCE))
    documents = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(pieces)])
    sizes = np.full(int(documents[-1]), LONGEST_SEQUENCE, dtype=np.int64)
    sizes[documents[1:] - 1] = lengths - (pieces - 1) * LONGEST_SEQUENCE
    pointers = (np.cumsum(sizes) - sizes) * dtype.itemsize
    with path.open("wb") as file:
        file.write(_HEADER.pack(MAGIC, VERSION, _CODES[dtype.name], len(sizes), len(documents)))
        file.write(sizes.astype("<i4").tobytes())
        file.write(pointers.astype("<i8").tobytes())
        file.write(documents.astype("<i8").tobytes())


def _end_of_tokens(index: Path, num_sequences: int, itemsize: int) -> int:
    """Bytes of tokens by the last sequence."""
    if num_sequences == 0:
        return 0
    last_size = int(_mapped(index, "<i4", num_sequences, _HEADER.size)[-1])
    last_pointer = int(_mapped(index, "<i8", num_sequences, _HEADER.size + 4 * num_sequences)[-1])
    return last_pointer + last_size * itemsize


def _mapped(path: Path, dtype: str, count: int, offset: int) -> NDArray[Any]:
    if count == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))
