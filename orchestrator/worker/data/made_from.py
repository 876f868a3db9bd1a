"""What a folder of tokens is made from. Only the same is gone on with, or taken for done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.findings import Finding, error
from orchestrator.tokens.request import PrepareRequest
from orchestrator.tokens.writer import file_sha256
from orchestrator.worker.data.chunks import InputFile
from orchestrator.worker.data.inputs import FIELD, Inputs
from orchestrator.worker.data.shards import write_whole
from orchestrator.worker.data.tokenizer import LIBRARY, LoadedTokenizer

MADE_FROM = "made_from.json"
_OPTIONS = {
    "fields": "prepare.text_field",
    "shard_tokens": "prepare.shard_tokens",
    "tokenizer_sha256": "data.tokenizer_path",
    "end_of_document": "data.tokenizer_path",
    "trained_vocab_size": "data.tokenizer_vocab_size",
}
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrom:
    """Everything that decides which token stands where.

    ``tokenizer_sha256`` and ``end_of_document`` are those of a given tokenizer, ``trained_vocab_size`` is the size of one that
    is trained on the text.
    ``files`` are path, format, bytes and time of change: reading them all again would take as long as making the tokens.
    """

    fields: tuple[str, ...]
    shard_tokens: int
    tokenizer_sha256: str | None
    trained_vocab_size: int | None
    library: str
    files: tuple[tuple[str, str, int, int], ...]
    end_of_document: int | None = None

    def summary(self) -> dict[str, Any]:
        """The values without the list of files."""
        values = asdict(self)
        num_bytes = sum(size for _, _, size, _ in values.pop("files"))
        return {**values, "num_files": len(self.files), "num_bytes": num_bytes}


def made_from(request: PrepareRequest, inputs: Inputs, given: LoadedTokenizer | None) -> MadeFrom:
    """What ``request`` asks for, with the tokenizer ``given``, or one that is trained."""
    return MadeFrom(
        fields=request.fields,
        shard_tokens=request.shard_tokens,
        tokenizer_sha256=None if given is None else file_sha256(given.path),
        end_of_document=None if given is None else given.end_of_text,
        trained_vocab_size=request.vocab_size if given is None else None,
        library=f"tokenizers {LIBRARY}",
        files=tuple(_file(file) for file in inputs.files),
    )


def write_made_from(folder: Path, values: MadeFrom) -> None:
    """Note it in the folder."""
    write_whole(folder / MADE_FROM, asdict(values))


def read_made_from(folder: Path) -> MadeFrom | None:
    """What was noted in the folder; None if nothing was."""
    if not (folder / MADE_FROM).is_file():
        return None
    values: dict[str, Any] = json.loads((folder / MADE_FROM).read_text(encoding="utf-8"))
    files = tuple((path, format, size, mtime) for path, format, size, mtime in values.pop("files"))
    return MadeFrom(files=files, fields=tuple(values.pop("fields")), **values)


def differences(before: MadeFrom, now: MadeFrom, folder: Path, *, is_whole: bool) -> Iterator[Finding]:
    """Why ``folder`` cannot be gone on with. A whole one does not mind another version of the library."""
    fix = f"restore it, or prepare into another folder than {folder}"
    for name, option in _OPTIONS.items():
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            yield error(
                "prepare-changed", option, f"{name} was {_said(old)} when {folder} was begun, and is {_said(new)} now", fix
            )
    if before.library != now.library and not is_whole:
        message = f"{folder} was begun with {before.library}, and {now.library} is installed"
        yield error(
            "prepare-changed", "prepare.output", message, f"install {before.library} to go on, or prepare into another folder"
        )
    changed = list(_changed_files(before, now))
    if changed:
        more = f", and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        message = f"the input is not what {folder} was made from: {'; '.join(changed[:_MOST_NAMED])}{more}"
        yield error("prepare-changed", FIELD, message, fix)


def _changed_files(before: MadeFrom, now: MadeFrom) -> Iterator[str]:
    old = {path: rest for path, *rest in before.files}
    new = {path: rest for path, *rest in now.files}
    yield from (f"{path} is new" for path in new if path not in old)
    yield from (f"{path} has gone" for path in old if path not in new)
    yield from (f"{path} has changed" for path in new if path in old and old[path] != new[path])
    if old == new and before.files != now.files:
        yield "the files come in another order"


def _file(file: InputFile) -> tuple[str, str, int, int]:
    return str(file.path), file.format.value, file.size, file.mtime_ns


def _said(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return "null" if value is None else str(value)
