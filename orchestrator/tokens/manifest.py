"""``tokens.json``: what a folder of token files holds and what it was made from. Written last: with it the folder is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.tokens.megatron import unreadable

MANIFEST = "tokens.json"
TOKENIZER = "tokenizer.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One pair of token files. ``sha256`` is that of the ``.bin``; ``answers_sha256`` that of ``NAME.answers.npy``, if any."""

    name: str
    tokens: int
    documents: int
    sha256: str
    index_sha256: str
    answers_sha256: str | None = None
    bad_documents: int = 0

    @property
    def has_answers(self) -> bool:
        """Whether it says for each document where its answer begins."""
        return self.answers_sha256 is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete folder. ``unigram_entropy`` is that of the token frequencies, in nats a token.

    ``tokenizer_sha256`` is None for tokens that no tokenizer made. ``made_from`` is for people and for whoever made it.
    """

    dtype: str
    vocab_size: int
    end_of_document: int | None
    unigram_entropy: float
    tokenizer_sha256: str | None
    shards: tuple[Shard, ...]
    made_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def num_documents(self) -> int:
        """Documents of all shards."""
        return sum(shard.documents for shard in self.shards)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``tokens.json`` whole or not at all."""
    values = {"format": FORMAT, "num_tokens": manifest.num_tokens, "num_documents": manifest.num_documents, **asdict(manifest)}
    scratch = folder / f".{MANIFEST}"
    with scratch.open("w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(folder / MANIFEST)


def read_manifest(folder: Path, *, field: str) -> Manifest:
    """The manifest of a complete folder.

    Raises:
        ConfigurationError: it is not there, broken, or of another format.
    """
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT:
            raise unreadable(path, f"is not of format {FORMAT}, which this version reads", field=field)
        for derived in ("num_tokens", "num_documents"):
            values.pop(derived)
        shards = tuple(Shard(**shard) for shard in values.pop("shards"))
        return Manifest(shards=shards, **values)
    except FileNotFoundError:
        raise unreadable(path, "is not there", field=field) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise unreadable(path, f"cannot be read: {problem}", field=field) from None
