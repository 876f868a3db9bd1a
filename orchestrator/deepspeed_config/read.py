"""Reads a DeepSpeed JSON as DeepSpeed does: with hjson, which takes comments, trailing commas and unquoted keys.

What DeepSpeed answers badly is answered here: a path that does not exist is not tried as base64, and every duplicate key is
named with its path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hjson

from orchestrator.deepspeed_config.lint_rules import LintRule, lint_rule
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity

FIELD = "deepspeed_json"
FILE = lint_rule("json-file", "the file is there and is UTF-8 text with a mapping", Severity.error)
SYNTAX = lint_rule("json-syntax", "the file can be parsed as DeepSpeed parses it", Severity.error)
DUPLICATE = lint_rule("json-duplicate-key", "no key is given twice", Severity.error)
_LARGEST_FILE = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A DeepSpeed JSON as it was written. ``is_strict``: it is JSON without hjson's liberties."""

    path: str
    values: dict[str, Any]
    is_strict: bool


class _Object(dict[str, Any]):
    """A mapping that remembers which of its keys were given more than once."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs
        names = [name for name, _ in pairs]
        self.duplicates = sorted({name for name in names if names.count(name) > 1}) if len(self) < len(names) else []


def read_document(path: str) -> Document:
    """Read the file at ``path``.

    Raises:
        ConfigurationError: it cannot be read, or is no mapping of distinct keys.
    """
    text = read_text(Path(os.path.expanduser(path)), FIELD)  # noqa: PTH111 - Path's raises for unknown users
    values = parse(text, FIELD)
    if not _is_printable(values):
        raise _refused(SYNTAX, FIELD, "an escape \\ud800 to \\udfff stands alone, which is no character", "remove it")
    if isinstance(values, _Object):
        duplicates = list(_duplicates(values, ""))
        if duplicates:
            raise ConfigurationError(duplicates)
        return Document(path=path, values=_plain(values), is_strict=_is_strict(text))
    kind = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(values), "a number")
    message = f"{path} holds {kind}, and a DeepSpeed configuration is a mapping"
    raise _refused(FILE, FIELD, message, 'write { "train_micro_batch_size_per_gpu": 1, ... }')


def read_text(path: Path, field: str) -> str:
    """The text of a file.

    Raises:
        ConfigurationError: no such file, a folder, not UTF-8, a byte-order mark, empty.
    """
    if path.is_dir():
        raise _refused(FILE, field, f"{path} is a folder", "name the file in it")
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise _refused(FILE, field, f"{path} has {path.stat().st_size} bytes", "name a configuration file")
        data = path.read_bytes()
    except FileNotFoundError:
        raise _refused(FILE, field, f"{path} is not there: file not found", "correct the path") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise _refused(FILE, field, f"{path} cannot be read: {reason}", "make it a readable file") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        raise _refused(
            FILE, field, f"{path} starts with a byte-order mark, which DeepSpeed reads as text", "save it as UTF-8 without"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise _refused(FILE, field, f"{path} is not UTF-8: line {line} holds another encoding", "save it as UTF-8") from None
    if not text.strip():
        raise _refused(FILE, field, f"{path} is empty", "write at least a batch size into it")
    return text


def parse(text: str, field: str) -> Any:
    """The value a text stands for; mappings remember their duplicate keys.

    Raises:
        ConfigurationError: the text is broken; line and column are named.
    """
    try:
        return hjson.loads(text, object_pairs_hook=_Object)
    except hjson.HjsonDecodeError as problem:
        where = f"line {problem.lineno}, column {problem.colno}{_strict_fault(text, problem.pos)}"
        fix = "mend it there; without quotes a text goes on to the end of its line, so quote texts that a comma follows"
        raise _refused(SYNTAX, field, f"{where}: {_sentence(problem.msg)}", fix) from None
    except IndexError:
        # hjson runs off the end of the text
        line = text.count("\n") + 1
        message = f"line {line}: a comment /* or a text is not closed"
        raise _refused(SYNTAX, field, message, "close it") from None
    except RecursionError:
        raise _refused(SYNTAX, field, "it is nested too deeply to be read", "flatten it") from None
    except (ValueError, ArithmeticError) as problem:
        raise _refused(SYNTAX, field, f"a value cannot be read: {problem}", "correct it") from None


def _refused(rule: LintRule, field: str, message: str, fix: str) -> ConfigurationError:
    return ConfigurationError([rule(field, message, fix)])


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:].removesuffix(" %r at")


def _strict_fault(text: str, position: int) -> str:
    """Where strict JSON sees the fault, when it is earlier: hjson only notices at the end of a text without quotes."""
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        if problem.pos < position:
            return f" (to strict JSON, line {problem.lineno}, column {problem.colno})"
    except (ValueError, RecursionError):
        pass
    return ""


def _is_printable(values: Any) -> bool:
    """Whether every text in ``values`` can be written again: a lone surrogate escape cannot."""
    try:
        json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _duplicates(values: _Object, prefix: str) -> Iterator[Finding]:
    for name in values.duplicates:
        path = f"{prefix}{name}"
        message = f"the key is given {sum(1 for given, _ in values.pairs if given == name)} times, which DeepSpeed refuses"
        yield DUPLICATE(path, message, "keep one of them")
    for name, value in values.pairs:
        yield from _nested_duplicates(value, f"{prefix}{name}")


def _nested_duplicates(value: Any, path: str) -> Iterator[Finding]:
    if isinstance(value, _Object):
        yield from _duplicates(value, f"{path}.")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _nested_duplicates(item, f"{path}[{position}]")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _is_strict(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
