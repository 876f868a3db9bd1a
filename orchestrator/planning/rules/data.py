"""Rules about the data."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import DataSource
from orchestrator.findings import Finding, Severity, error, info
from orchestrator.planning.rules.registry import Fact, RuleContext, rule


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
    """Of a tokenizer that is trained here; one that exists is read by the worker."""
    data, rows = context.config.data, context.model.vocab_size
    trains = data.source is not DataSource.synthetic and data.tokenizer_path is None
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


@rule("data-path", "text needs a path", Severity.error)
def data_path(context: RuleContext) -> Iterator[Finding]:
    """Only the files of this Python and random tokens have none."""
    data = context.config.data
    if data.source is DataSource.text and not data.path:
        yield error(
            "data-path", "data.path", "data.source=text, and there is no file or folder to read", "set data.path=/your/text"
        )
    if data.source is not DataSource.text and data.path:
        yield info(
            "data-path",
            "data.path",
            f"it has no effect with data.source={data.source.value}",
            "set data.source=text, or data.path=null",
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
