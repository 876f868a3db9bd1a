"""What prepared tokens amount to in a run, counted before it starts: sequences, epochs, padding, and tokens with a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import Packing
from orchestrator.findings import Finding, error, info, warning
from orchestrator.tokens.order import sample_order, size_findings
from orchestrator.tokens.sources import blend
from orchestrator.tokens.store import TokenStore
from orchestrator.tokens.windows import StreamWindows, packed_table

MOST_PACKED = 10**7
"""Documents that are packed to count the sequences (about two seconds); of more, the first so many stand for all."""

MANY_EPOCHS = 4
"""Up to so many, repeated text is worth almost as much as new text: Muennighoff et al., "Scaling Data-Constrained Language
Models" (2023)."""

MOST_PADDING = 0.3
"""Documents that are put together in their order leave half of a sequence empty at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCount:
    """One source. ``share`` is that of the sequences trained on, ``epochs`` how often the run reads the source."""

    tokens: int
    documents: int
    sequences: int
    held_out_sequences: int
    padding_share: float
    """Of the positions of the sequences."""
    loss_share: float
    """Of the tokens, the part that the loss is on: the answers', where there are any."""
    is_estimated: bool
    """Whether sequences and padding were counted on the first documents only."""
    share: float = 0.0
    epochs: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCount:
    """All sources by name, the further held-out sets, and what the steps of the run read."""

    sources: Mapping[str, SourceCount]
    evaluation: Mapping[str, SourceCount]
    steps: int
    trained_sequences: int
    trained_tokens: int
    """Positions of the sequences that the run trains on, padding included."""

    def to_dict(self) -> dict[str, Any]:
        """The ``data`` object of ``output=json``."""
        return asdict(self)


def count_source(store: TokenStore, data: DataConfig, *, held_out_fraction: float) -> SourceCount:
    """Count one store; its tokens are not read.

    Raises:
        ConfigurationError: an index contradicts itself.
    """
    length, answer_starts = data.sequence_length, store.answer_starts
    is_packed = data.packing is Packing.whole_documents
    ends = _first_document_ends(store) if is_packed or answer_starts is not None else np.empty(0, dtype=np.int64)
    sequences, padding = StreamWindows(num_tokens=store.num_tokens, sequence_length=length).num_sequences, 0.0
    if is_packed:
        sequences, padding = _packed(ends, store, length)
    return SourceCount(
        tokens=store.num_tokens,
        documents=store.num_documents,
        sequences=sequences,
        held_out_sequences=sample_order(sequences, held_out_fraction=held_out_fraction, seed=0).num_held_out,
        padding_share=padding,
        loss_share=1.0 if answer_starts is None else _loss_share(ends, answer_starts[: len(ends)]),
        is_estimated=is_packed and len(ends) < store.num_documents,
    )


def count_data(
    data: DataConfig,
    stores: Mapping[str, TokenStore],
    evaluation: Mapping[str, TokenStore],
    *,
    steps: int,
    train_batch_size: int,
) -> DataCount:
    """Count what ``steps`` of ``train_batch_size`` sequences read of ``stores``, in the order of the blend.

    Raises:
        ConfigurationError: an index contradicts itself.
    """
    counts = [count_source(store, data, held_out_fraction=data.held_out_fraction) for store in stores.values()]
    shares = blend(data)
    read = shares.counts(steps * train_batch_size)
    sources = {
        name: replace(
            count,
            share=shares.share(number),
            epochs=read[number] / max(1, count.sequences - count.held_out_sequences),
        )
        for number, (name, count) in enumerate(zip(stores, counts, strict=True))
    }
    return DataCount(
        sources=sources,
        evaluation={name: count_source(store, data, held_out_fraction=1.0) for name, store in evaluation.items()},
        steps=steps,
        trained_sequences=steps * train_batch_size,
        trained_tokens=steps * train_batch_size * data.sequence_length,
    )


def count_findings(count: DataCount, data: DataConfig) -> list[Finding]:
    """What the numbers say against the run."""
    entries = [(name, source, True) for name, source in count.sources.items()]
    entries += [(f"evaluation.{name}", source, False) for name, source in count.evaluation.items()]
    findings: list[Finding] = []
    for name, source, is_trained_on in entries:
        too_small = _size_findings(source, name, data, is_trained_on=is_trained_on)
        findings += too_small or _content_findings(source, name, data)
    return findings


def _size_findings(source: SourceCount, name: str, data: DataConfig, *, is_trained_on: bool) -> list[Finding]:
    fraction = data.held_out_fraction if is_trained_on else 1.0
    order = sample_order(source.sequences, held_out_fraction=fraction, seed=0)
    return size_findings(
        order, name=name, num_tokens=source.tokens, sequence_length=data.sequence_length, is_trained_on=is_trained_on
    )


def _content_findings(source: SourceCount, name: str, data: DataConfig) -> list[Finding]:
    findings = []
    if source.epochs > MANY_EPOCHS:
        message = f"{name} is read {source.epochs:.1f} times: after about {MANY_EPOCHS} epochs repeated text teaches little"
        findings.append(info("data-epochs", "training.max_steps", message, "use more text, or fewer steps"))
    if source.loss_share == 0:
        message = f"no token of {name} counts in the loss: its documents are prompts without answers"
        findings.append(error("data-answers", "data", message, "prepare it again with the field that holds the answers"))
    if source.padding_share > MOST_PADDING:
        message = f"{source.padding_share:.0%} of the sequences of {name} is padding, which costs as much as text"
        fix = f"set data.packing=stream, or a data.sequence_length other than {data.sequence_length}"
        findings.append(warning("data-padding", "data.packing", message, fix))
    return findings


def _packed(ends: NDArray[np.int64], store: TokenStore, length: int) -> tuple[int, float]:
    """How many sequences the documents fill, and the share of padding in them, both by the documents that end at ``ends``."""
    table = packed_table(ends, sequence_length=length)
    counted = table.shape[1]
    if counted == 0:
        return 0, 0.0
    padding = 1.0 - float((table[1] - table[0] - 1).sum()) / (counted * length)
    return round(counted * store.num_tokens / int(ends[-1])), padding


def _loss_share(ends: NDArray[np.int64], answer_starts: NDArray[np.int32]) -> float:
    sizes = np.diff(ends, prepend=0)
    return float(np.maximum(sizes - answer_starts, 0).sum() / max(1, sizes.sum()))


def _first_document_ends(store: TokenStore) -> NDArray[np.int64]:
    """Of the first documents, in whole files: a trillion tokens may have more documents than memory holds."""
    if store.num_documents <= MOST_PACKED:
        return store.document_ends
    ends, documents, begin = [], 0, 0
    for file in store.files:
        ends.append(begin + file.document_ends())
        documents, begin = documents + file.num_documents, begin + file.num_tokens
        if documents >= MOST_PACKED:
            break
    return np.concatenate(ends)[:MOST_PACKED]
