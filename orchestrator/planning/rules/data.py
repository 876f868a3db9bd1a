"""Rules about the data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from orchestrator.config.enums import DataSource, Packing
from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_READ_FROM_PATH = (DataSource.text, DataSource.tokens)


@rule("sequence-length", "a sequence is no longer than the model's positions", Severity.error, Fact.model)
def sequence_length(context: RuleContext) -> Iterator[Finding]:
    """Learned positions end there; rotary ones were never trained beyond."""
    length, positions = context.config.data.sequence_length, context.model.max_position_embeddings
    if length > positions:
        yield error(
            "sequence-length",
            "data.sequence_length",
            f"{length} tokens are more than model.max_position_embeddings={positions}",
            f"set data.sequence_length={positions}",
        )


@rule("tokenizer-vocabulary", "the tokenizer's entries have rows in the embedding", Severity.error, Fact.model)
def tokenizer_vocabulary(context: RuleContext) -> Iterator[Finding]:
    """Of a tokenizer that is trained here; that of tokens that exist is read with them."""
    data, rows = context.config.data, context.model.vocab_size
    trains = data.source in (DataSource.text, DataSource.python_stdlib) and data.tokenizer_path is None
    if trains and data.tokenizer_vocab_size > rows:
        yield error(
            "tokenizer-vocabulary",
            "data.tokenizer_vocab_size",
            f"{data.tokenizer_vocab_size} tokens need as many rows, and model.vocab_size={rows}",
            f"set data.tokenizer_vocab_size={rows}" if rows >= 257 else "set model.vocab_size=257 or more",
        )


@rule("synthetic-tokens", "random tokens make more than one sequence", Severity.error)
def synthetic_tokens(context: RuleContext) -> Iterator[Finding]:
    """One to hold out and one to train on; real text is counted by the worker."""
    data = context.config.data
    needed = 2 * data.sequence_length + 1
    if data.source is DataSource.synthetic and 0 < data.synthetic_tokens < needed:
        yield error(
            "synthetic-tokens",
            "data.synthetic_tokens",
            f"{data.synthetic_tokens} tokens are fewer than two sequences of {data.sequence_length}",
            f"set data.synthetic_tokens={needed} or more",
        )


@rule("data-path", "text and tokens need a path", Severity.error)
def data_path(context: RuleContext) -> Iterator[Finding]:
    """Only the files of this Python and random tokens have none; a mixture has one for each source."""
    data = context.config.data
    if data.source in _READ_FROM_PATH and not data.path:
        what, example = ("file or folder", "/your/text") if data.source is DataSource.text else ("tokens", "/your/tokens")
        message = f"data.source={data.source.value}, and there is no {what} to read"
        yield error("data-path", "data.path", message, f"set data.path={example}")
    if data.source not in _READ_FROM_PATH and data.path:
        yield info(
            "data-path",
            "data.path",
            f"it has no effect with data.source={data.source.value}",
            "set data.source=text or data.source=tokens, or data.path=null",
        )


@rule("mixture-sources", "a mixture has sources, each with a path and a weight above 0", Severity.error)
def mixture_sources(context: RuleContext) -> Iterator[Finding]:
    """Weights are relative: any numbers above 0. A source that is not to be read is left out."""
    data = context.config.data
    if data.source is DataSource.mixture and not data.sources:
        fix = "set data.sources.books.path=/your/tokens data.sources.books.weight=0.7, and so on for each source"
        yield error("mixture-sources", "data.sources", "data.source=mixture, and there is no source", fix)
    if data.source is not DataSource.mixture and data.sources:
        message = f"{', '.join(sorted(data.sources))} have no effect with data.source={data.source.value}"
        yield warning("mixture-sources", "data.sources", message, "set data.source=mixture, or leave them out")
    for name, source in data.sources.items():
        option = f"data.sources.{name}"
        if not source.path:
            yield error("mixture-sources", f"{option}.path", "the source has no tokens", f"set {option}.path=/your/tokens")
        if not (math.isfinite(source.weight) and source.weight > 0):
            message = f"{source.weight} is no share of the sequences"
            yield error("mixture-sources", f"{option}.weight", message, "set a number above 0, or leave the source out")


@rule("data-names", "sources and held-out sets have names that can stand in the names of metrics", Severity.error)
def data_names(context: RuleContext) -> Iterator[Finding]:
    """As in ``held_out_loss/NAME``."""
    data = context.config.data
    for section, names in (("sources", data.sources), ("evaluation", data.evaluation)):
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                yield error("data-names", f"data.{section}", f"{name!r} is not a name", "use letters, digits, _ and -")


@rule("synthetic-documents", "random tokens are not asked for documents", Severity.info)
def synthetic_documents(context: RuleContext) -> Iterator[Finding]:
    """They are one document, so there is nothing to keep whole or to start anew at."""
    data = context.config.data
    options = {"packing": data.packing is Packing.whole_documents, "reset_at_documents": data.reset_at_documents}
    for name in (name for name, is_set in options.items() if is_set and data.source is DataSource.synthetic):
        yield info(
            "synthetic-documents",
            f"data.{name}",
            "random tokens are one document: it has no effect",
            "use data that have documents, or leave it at its default",
        )


@rule("ignored-labels", "only synthetic data ignores labels at random", Severity.info)
def ignored_labels(context: RuleContext) -> Iterator[Finding]:
    """A fraction for real text has no effect."""
    data = context.config.data
    if data.source is not DataSource.synthetic and data.ignore_fraction > 0:
        yield info(
            "ignored-labels",
            "data.ignore_fraction",
            f"{data.ignore_fraction} has no effect with data.source={data.source.value}",
            "set data.ignore_fraction=0",
        )
