"""Reads files of text and of JSON lines, compressed or not, in chunks."""

from __future__ import annotations

import gzip
import io
import tokenize
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from orchestrator.worker.data.chunks import CHUNK_BYTES, Chunk, Form, InputFile, Place, unreadable

GZIP, ZSTANDARD = ".gz", ".zst"
COMPRESSED = (GZIP, ZSTANDARD)

_LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, at most."""


def text_chunks(file: InputFile, start: Place, *, field: str) -> Iterator[Chunk]:
    """The file as one document, cut at ends of lines; a file without a byte holds none.

    Of a file that is not UTF-8, only a chunk with the first wrong byte: a document is read whole or not at all.
    """
    if start.offset:
        return  # a document that has begun is always read to its end
    with _opened(file, field) as (stream, raw):
        pieces = _pieces(stream)
        piece, offset = next(pieces, b""), 0
        following = next(pieces, b"")
        wrong = _wrong_piece(file, field) if following else None
        if wrong is not None:
            yield _text(file, start, wrong, offset=file.size or 1, disk_bytes=file.size)
            return
        while piece:
            begins, offset = offset == 0, offset + len(piece)
            yield _text(file, start, piece, offset=offset, disk_bytes=raw.tell(), begins=begins, ends=not following)
            piece, following = following, next(pieces, b"")


def line_chunks(file: InputFile, start: Place, *, field: str) -> Iterator[Chunk]:
    """Whole lines of the file from ``start``."""
    with _opened(file, field) as (stream, raw):
        _skip(stream, start.offset)
        offset, number = start.offset, start.number
        while block := stream.read(CHUNK_BYTES):
            block += stream.readline()
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            offset += len(block)
            after = Place(file=start.file, offset=offset, number=number + lines)
            yield Chunk(form=Form.lines, file=str(file.path), content=block, after=after, disk_bytes=raw.tell(), number=number)
            number += lines


def _text(
    file: InputFile, start: Place, content: bytes, *, offset: int, disk_bytes: int, begins: bool = True, ends: bool = True
) -> Chunk:
    return Chunk(
        form=Form.text,
        file=str(file.path),
        content=content,
        after=Place(file=start.file, offset=offset),
        disk_bytes=disk_bytes,
        begins_document=begins,
        ends_document=ends,
    )


@contextmanager
def _opened(file: InputFile, field: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The uncompressed bytes of a file, and the file, whose position says how far it has been read."""
    try:
        with file.path.open("rb") as raw:
            if file.is_python:
                with tokenize.open(file.path) as source:
                    yield io.BytesIO(source.read().encode()), raw
            elif file.path.suffix == GZIP:
                with gzip.open(raw) as stream:
                    yield cast(IO[bytes], stream), raw
            elif file.path.suffix == ZSTANDARD:
                yield _zstandard(raw), raw
            else:
                yield raw, raw
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, SyntaxError) as problem:
        raise unreadable(file.path, problem, field=field) from None


def _zstandard(raw: IO[bytes]) -> IO[bytes]:
    import pyarrow

    stream: Any = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")
    return io.BufferedReader(stream, CHUNK_BYTES)


def _skip(stream: IO[bytes], offset: int) -> None:
    if stream.seekable():
        stream.seek(offset)
        return
    while offset > 0 and (part := stream.read(min(offset, CHUNK_BYTES))):
        offset -= len(part)


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    """The bytes in stretches that end with a line; a line that is longer is cut before a space, or between characters."""
    rest = b""
    while block := rest + stream.read(max(0, CHUNK_BYTES - len(rest))):
        block += stream.readline(CHUNK_BYTES)
        end = len(block)
        if len(block) >= 2 * CHUNK_BYTES and not block.endswith(b"\n"):
            end = _place_to_cut(block)
        yield block[:end]
        rest = block[end:]


def _place_to_cut(block: bytes) -> int:
    space = block.rfind(b" ", CHUNK_BYTES)
    if space > 0:
        return space
    for end in range(len(block) - 1, len(block) - 1 - _LONGEST_CHARACTER, -1):
        if block[end] & 0b1100_0000 != 0b1000_0000:
            return end
    return len(block)


def _wrong_piece(file: InputFile, field: str) -> bytes | None:
    with _opened(file, field) as (stream, _):
        for piece in _pieces(stream):
            try:
                piece.decode()
            except UnicodeDecodeError:
                return piece
    return None


def uncompressed_name(path: Path) -> str:
    """The name of a file without the ending of its compression."""
    return path.name.removesuffix(path.suffix) if path.suffix in COMPRESSED else path.name
