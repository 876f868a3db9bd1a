"""Small inputs and a small tokenizer for ``prepare``, and the folders it leaves."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from orchestrator.tokens.request import PrepareRequest
from orchestrator.tokens.store import open_tokens
from orchestrator.worker.prepare import prepare

END = "<|endoftext|>"
WORDS = [f"word{number}" for number in range(40)]
VOCABULARY = {word: number for number, word in enumerate([END, "[UNK]", *WORDS])}


def write_tokenizer(path: Path, *, end: str | None = END) -> Path:
    """A tokenizer of one token a word."""
    vocabulary = VOCABULARY if end == END else {name.replace(END, end or "[END]"): id for name, id in VOCABULARY.items()}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def ids(text: str) -> list[int]:
    """The tokens of a document without its end."""
    return [VOCABULARY.get(word, 1) for word in text.split()]


def sentences(number: int, *, words: int = 12, seed: int = 0) -> list[str]:
    """Documents of a few words each."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, words))) for _ in range(number)]


def write_lines(path: Path, entries: Iterable[Any]) -> Path:
    """JSON lines; a string is a line as it is."""
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def request_of(folder: Path, inputs: Sequence[Path], **changes: Any) -> PrepareRequest:
    """A request for ``folder / "tokens"`` with the tokenizer in ``folder / "tokenizer.json"``."""
    values: dict[str, Any] = {
        "input": tuple(map(str, inputs)),
        "output": str(folder / "tokens"),
        "format": "auto",
        "text_endings": (".txt", ".md"),
        "fields": ("text",),
        "tokenizer": str(folder / "tokenizer.json"),
        "vocab_size": 300,
        "processes": 1,
        "shard_tokens": 100_000_000,
        "max_bad_fraction": 0.0,
    }
    return PrepareRequest(**{**values, **changes})


def run(folder: Path, inputs: Sequence[Path], **changes: Any) -> dict[str, Any]:
    """Prepare in this process, as often as it is called from the beginning of a start."""
    request = request_of(folder, inputs, **changes)
    scratch = folder / f"scratch-{len(list(folder.glob('scratch-*')))}"
    scratch.mkdir()
    return prepare(request, scratch)


def documents_in(folder: Path) -> list[list[int]]:
    """The documents of a folder of tokens."""
    store = open_tokens(folder)
    starts = [0, *store.document_ends.tolist()]
    return [store.read(start, stop).tolist() for start, stop in pairwise(starts)]


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, byte for byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
