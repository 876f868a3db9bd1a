"""The documents in a chunk, and those that are none: why, and where they stand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrator.worker.data.chunks import Chunk, Form

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Defect(StrEnum):
    """Why something is no document."""

    broken_json = "broken_json"
    missing_field = "missing_field"
    wrong_type = "wrong_type"
    invalid_utf8 = "invalid_utf8"
    empty = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadDocument:
    """Something that should have been a document. ``place`` is its file, with the line or row it stands in."""

    place: str
    defect: Defect
    detail: str

    def to_dict(self) -> dict[str, str]:
        """A line of ``bad_documents.jsonl``."""
        return {key: str(value) for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document, or a stretch of one: one text, or a prompt and its answer."""

    place: str
    parts: tuple[str, ...]
    begins: bool = True
    ends: bool = True


class DefectError(Exception):
    """What was read is no document."""

    def __init__(self, defect: Defect, detail: str) -> None:
        self.defect, self.detail = defect, detail
        super().__init__(detail)


def documents(chunk: Chunk, fields: Sequence[str]) -> Iterator[Document | BadDocument]:
    """What is in ``chunk``, in order; ``fields`` are those of a JSON object that hold the text. Blank lines are nothing."""
    if chunk.form is Form.text:
        assert isinstance(chunk.content, bytes)
        content = chunk.content.removeprefix(_BYTE_ORDER_MARK) if chunk.begins_document else chunk.content
        yield _document(chunk, chunk.file, (content,), ("text",))
    elif chunk.form is Form.rows:
        for row, values in enumerate(zip(*chunk.content, strict=True)):
            yield _document(chunk, f"{chunk.file} row {chunk.number + row}", values, fields)
    else:
        assert isinstance(chunk.content, bytes)
        for number, line in enumerate(chunk.content.split(b"\n"), start=chunk.number):
            if line and not line.isspace():
                yield _line(chunk, f"{chunk.file}:{number}", line.removeprefix(_BYTE_ORDER_MARK), fields)


def _line(chunk: Chunk, place: str, line: bytes, fields: Sequence[str]) -> Document | BadDocument:
    try:
        values = _object(line)
        missing = [field for field in fields if field not in values]
        if missing:
            raise DefectError(Defect.missing_field, f"no field {missing[0]!r}; there is {', '.join(values) or 'none'}"[:200])
    except DefectError as problem:
        return BadDocument(place=place, defect=problem.defect, detail=problem.detail)
    return _document(chunk, place, [values[field] for field in fields], fields)


def _object(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError as problem:
        raise DefectError(Defect.invalid_utf8, str(problem)) from None
    except (ValueError, RecursionError) as problem:
        raise DefectError(Defect.broken_json, str(problem)) from None
    if not isinstance(values, dict):
        raise DefectError(Defect.wrong_type, f"the line is no object, but {_kind(values)}")
    return values


def _document(chunk: Chunk, place: str, values: Sequence[Any], fields: Sequence[str]) -> Document | BadDocument:
    try:
        parts = tuple(_text(value, field) for value, field in zip(values, fields, strict=True))
    except DefectError as problem:
        return BadDocument(place=place, defect=problem.defect, detail=problem.detail)
    return Document(place=place, parts=parts, begins=chunk.begins_document, ends=chunk.ends_document)


def _text(value: Any, field: str) -> str:
    """The text that ``value`` is, with nothing a tokenizer cannot take."""
    try:
        if isinstance(value, bytes):
            text = value.decode()
        elif isinstance(value, str):
            text = value
            text.encode()  # JSON can spell half a character
        else:
            raise DefectError(Defect.wrong_type, f"{field} is no text, but {_kind(value)}")
    except UnicodeError as problem:
        raise DefectError(Defect.invalid_utf8, f"{field}: {problem}") from None
    if not text:
        raise DefectError(Defect.empty, f"{field} is empty")
    return text


def _kind(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
