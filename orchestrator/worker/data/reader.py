"""The reader of a rank's batches, and what its training order depends on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.config.enums import DataSource, Packing
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.planning.layout import ParallelLayout
from orchestrator.tokens.order import sample_order, size_findings
from orchestrator.tokens.sources import blend
from orchestrator.tokens.store import TokenStore, open_tokens
from orchestrator.tokens.windows import PackedWindows, StreamWindows, Windows, packed_table
from orchestrator.worker.data.batches import BatchReader
from orchestrator.worker.data.cache import cached_array
from orchestrator.worker.data.run_data import RunData
from orchestrator.worker.data.sequences import SequenceSource

MANY_DOCUMENTS = 2**20
"""From so many on, a source's index is made once a host and its ranks map it from data.cache_dir."""


def batch_reader(config: RunConfig, data: RunData, *, layout: ParallelLayout, rank: int) -> BatchReader:
    """The reader of ``rank``'s batches.

    Raises:
        ConfigurationError: there are too few tokens for one training sequence.
    """
    fraction = config.data.held_out_fraction
    sources = [
        _source(config, data, name, tokens, held_out_fraction=fraction, number=number)
        for number, (name, tokens) in enumerate(data.sources.items())
    ]
    evaluation = {
        name: _source(config, data, f"evaluation.{name}", tokens, held_out_fraction=1.0)
        for name, tokens in data.evaluation.items()
    }
    _require_sequences(sources, is_trained_on=True)
    _require_sequences(evaluation.values(), is_trained_on=False)
    return BatchReader(sources=sources, blend=blend(config.data), layout=layout, rank=rank, evaluation=evaluation)


def data_identity(config: RunConfig, data: RunData) -> dict[str, Any]:
    """What decides which sequences and labels stand where in the training order: a position means nothing in another one."""
    parts = blend(config.data).parts
    sources = {
        f"data.sources.{name}": {"tokens": tokens.identity, "parts": part}
        for (name, tokens), part in zip(data.sources.items(), parts, strict=True)
    }
    return {
        **sources,
        "data.sequence_length": config.data.sequence_length,
        "data.held_out_fraction": config.data.held_out_fraction,
        "data.packing": config.data.packing.value,
        "data.reset_at_documents": config.data.reset_at_documents,
        "data.ignore_fraction": config.data.ignore_fraction,
        "seed": config.seed,
    }


def _source(
    config: RunConfig, data: RunData, name: str, tokens: TokenStore, *, held_out_fraction: float, number: int = 0
) -> SequenceSource:
    windows = _windows(config, tokens)
    answers, reset = tokens.answer_starts, config.data.reset_at_documents
    return SequenceSource(
        name=name,
        tokens=tokens,
        document_ends=_document_ends(config, tokens) if reset or answers is not None else None,
        answer_starts=answers,
        windows=windows,
        order=sample_order(windows.num_sequences, held_out_fraction=held_out_fraction, seed=config.seed, source=number),
        sequence_length=config.data.sequence_length,
        vocab_size=data.model_vocab_size,
        reset_at_documents=reset,
        ignore_fraction=config.data.ignore_fraction if config.data.source is DataSource.synthetic else 0.0,
    )


def _require_sequences(sources: Iterable[SequenceSource], *, is_trained_on: bool) -> None:
    findings = [
        finding
        for source in sources
        for finding in size_findings(
            source.order,
            name=source.name,
            num_tokens=source.tokens.num_tokens,
            sequence_length=source.sequence_length,
            is_trained_on=is_trained_on,
        )
    ]
    if findings:
        raise ConfigurationError(findings)


def _windows(config: RunConfig, tokens: TokenStore) -> Windows:
    length = config.data.sequence_length
    if config.data.packing is Packing.stream:
        return StreamWindows(num_tokens=tokens.num_tokens, sequence_length=length)
    if tokens.num_documents < MANY_DOCUMENTS:
        return PackedWindows(table=packed_table(tokens.document_ends, sequence_length=length))
    shape = {"kind": "windows", "tokens": tokens.identity, "sequence_length": length}
    table = cached_array(
        Path(config.data.cache_dir), shape, lambda: packed_table(_document_ends(config, tokens), sequence_length=length)
    )
    return PackedWindows(table=table)


def _document_ends(config: RunConfig, tokens: TokenStore) -> NDArray[np.int64]:
    if tokens.num_documents < MANY_DOCUMENTS:
        return tokens.document_ends
    shape = {"kind": "document ends", "tokens": tokens.identity}
    # A store keeps what it has read: one that is opened for this alone gives the memory back.
    return cached_array(Path(config.data.cache_dir), shape, lambda: open_tokens(tokens.path).document_ends)
