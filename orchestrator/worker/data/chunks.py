"""Stretches of input that a process turns into tokens by itself, and where reading goes on after each.

Where one ends depends on the input alone, not on who reads it or where reading began: whatever is made of them is the same
however often the work was broken off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.config.enums import TextFormat
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error

CHUNK_BYTES = 2**20
"""Input is read in stretches of about this size, so that a file larger than memory can be read."""


class Form(StrEnum):
    """What a chunk's content is."""

    text = "text"
    """Bytes: a document, or a stretch of one."""
    lines = "lines"
    """Bytes: lines of JSON, a document each."""
    rows = "rows"
    """A list for each field, an entry a document: bytes, or whatever is there instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of the input, as it was when it was found. ``is_python`` source may name its own encoding."""

    path: Path
    format: TextFormat
    size: int
    mtime_ns: int
    is_python: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where reading goes on: in which file, what of it is behind (bytes, uncompressed, or rows), and its next line or row."""

    file: int = 0
    offset: int = 0
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A stretch of a file. ``number`` is its first line or row, from 1; text may begin or end within a document."""

    form: Form
    file: str
    content: bytes | tuple[list[Any], ...]
    after: Place
    disk_bytes: int
    """Of the file on disk, about, that are behind with this chunk."""
    number: int = 1
    begins_document: bool = True
    ends_document: bool = True


def grouped(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Consecutive chunks of about ``CHUNK_BYTES`` together: small files are not worth a message each."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += _size(chunk)
        if size >= CHUNK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def unreadable(path: Path, problem: object, *, field: str) -> ConfigurationError:
    """The refusal of a file that is not what it seems; ``field`` is the option that named it."""
    fix = "repair the file, or leave it out"
    return ConfigurationError([error("text-file", field, f"{path} cannot be read: {problem}", fix)])


def _size(chunk: Chunk) -> int:
    if isinstance(chunk.content, bytes):
        return len(chunk.content)
    return sum(len(value) for column in chunk.content for value in column if isinstance(value, bytes))
