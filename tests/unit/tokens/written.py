"""Token files made by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orchestrator.tokens.manifest import Manifest, write_manifest
from orchestrator.tokens.megatron import token_dtype
from orchestrator.tokens.writer import ShardWriter


def megatron_bytes(sizes: Sequence[int], documents: Sequence[int], *, code: int, itemsize: int) -> bytes:
    """An index as Megatron's published format has it, put together byte by byte."""
    pointers = [sum(sizes[:number]) * itemsize for number in range(len(sizes))]
    return b"".join(
        [
            b"MMIDIDX\x00\x00",
            struct.pack("<Q", 1),
            struct.pack("<B", code),
            struct.pack("<Q", len(sizes)),
            struct.pack("<Q", len(documents)),
            struct.pack(f"<{len(sizes)}i", *sizes),
            struct.pack(f"<{len(sizes)}q", *pointers),
            struct.pack(f"<{len(documents)}q", *documents),
        ]
    )


def write_megatron(prefix: Path, documents: Sequence[Sequence[int]], *, code: int = 8, dtype: str = "<u2") -> None:
    """A pair of files as Megatron's own preprocessing leaves it."""
    sizes = [len(document) for document in documents]
    index = megatron_bytes(sizes, range(len(sizes) + 1), code=code, itemsize=np.dtype(dtype).itemsize)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(index)
    tokens = np.array([token for document in documents for token in document], dtype=dtype)
    prefix.with_name(f"{prefix.name}.bin").write_bytes(tokens.tobytes())


def write_folder(
    folder: Path,
    shards: Sequence[Sequence[Sequence[int]]],
    *,
    vocab_size: int = 1000,
    answers: Sequence[Sequence[int]] | None = None,
) -> None:
    """A complete folder of shards of documents; ``answers`` says for each document of each shard where its answer begins."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, documents in enumerate(shards):
        writer = ShardWriter(folder / f"shard-{number:05d}", dtype=token_dtype(vocab_size), with_answers=answers is not None)
        writer.write(
            np.array([token for document in documents for token in document], dtype=np.int64),
            np.array([len(document) for document in documents], dtype=np.int64),
            answer_starts=None if answers is None else np.array(answers[number], dtype=np.int32),
        )
        written.append(writer.close())
    manifest = Manifest(
        dtype=token_dtype(vocab_size).name,
        vocab_size=vocab_size,
        end_of_document=0,
        unigram_entropy=1.0,
        tokenizer_sha256=None,
        shards=tuple(written),
    )
    write_manifest(folder, manifest)
