"""What ``prepare`` is asked to do and what it says meanwhile: between the command line and the process that has tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULT = "result.json"
"""What the process leaves beside the request when it has come to its end."""
PROGRESS = "progress "
"""Begins a line that says in JSON how far the process has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """Text, and the folder its tokens go to. Paths are absolute.

    ``format`` is a ``TextFormat``; ``fields`` names the text, or the prompt and the answer; ``tokenizer`` is None where one of
    ``vocab_size`` entries is to be trained on the text.
    """

    input: tuple[str, ...]
    output: str
    format: str
    text_endings: tuple[str, ...]
    fields: tuple[str, ...]
    tokenizer: str | None
    vocab_size: int
    processes: int
    shard_tokens: int
    max_bad_fraction: float

    def write(self, path: Path) -> None:
        """Write the request as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_request(path: Path) -> PrepareRequest:
    """The request in a file."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    values |= {name: tuple(values[name]) for name in ("input", "text_endings", "fields")}
    return PrepareRequest(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareProgress:
    """How far it has come. ``fresh_bytes`` and ``fresh_tokens`` are those of this start, after ``seconds`` of work.

    ``stage`` is what is being done; ``bad`` counts bad documents by kind.
    """

    stage: str
    bytes: int
    num_bytes: int
    seconds: float
    fresh_bytes: int
    tokens: int = 0
    fresh_tokens: int = 0
    documents: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)

    def line(self) -> str:
        """The line that says it."""
        return PROGRESS + json.dumps(asdict(self))


def progress_in(line: str) -> PrepareProgress | None:
    """What a line of the process says of its progress; None if it is some other line."""
    if not line.startswith(PROGRESS):
        return None
    return PrepareProgress(**json.loads(line.removeprefix(PROGRESS)))
