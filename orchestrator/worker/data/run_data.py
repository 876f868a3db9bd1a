"""The tokens that a run reads, by source: prepared ones are opened, others are made once on each host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.config.schema import RunConfig
from orchestrator.tokens.sources import open_sources
from orchestrator.tokens.store import TokenStore
from orchestrator.units import format_count
from orchestrator.worker.data.prepare import prepare_data
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Stores by name: the sources of training in the order of the blend, and the further held-out sets."""

    sources: Mapping[str, TokenStore]
    evaluation: Mapping[str, TokenStore] = field(default_factory=dict)
    model_vocab_size: int
    """Rows of the model's embedding: every token is below it."""
    tokenizer_path: Path | None = None
    """The tokenizer that made the tokens; None where that is not known."""

    @property
    def unigram_entropy(self) -> float | None:
        """Entropy of the token frequencies of a single source, in nats a token; None where it is not known."""
        alone = len(self.sources) == 1
        return next(iter(self.sources.values())).unigram_entropy if alone else None

    @property
    def identities(self) -> dict[str, str]:
        """A hash of the tokens of every store."""
        stores = {**self.sources, **{f"evaluation.{name}": store for name, store in self.evaluation.items()}}
        return {name: store.identity for name, store in stores.items()}


def find_data(config: RunConfig, *, model_vocab_size: int, advanced: Callable[[], None] = lambda: None) -> RunData:
    """Open or make the tokens of a run. Every process calls this; one of a host makes them and the others wait for it.

    ``advanced`` is called for each piece of text that is made into tokens.

    Raises:
        ConfigurationError: tokens, text or the tokenizer cannot be used.
    """
    stores, evaluation = open_sources(config.data, model_vocab_size=model_vocab_size)
    for name, store in [*stores.items(), *evaluation.items()]:
        amount = f"{format_count(store.num_tokens)} tokens in {format_count(store.num_documents)} documents"
        say(f"data: {name}: {amount} of {store.path}")
    if not stores:
        prepared = prepare_data(config, model_vocab_size=model_vocab_size, advanced=advanced)
        return RunData(
            sources={config.data.source.value: prepared.tokens},
            evaluation=evaluation,
            model_vocab_size=model_vocab_size,
            tokenizer_path=prepared.tokenizer_path,
        )
    return RunData(
        sources=stores,
        evaluation=evaluation,
        model_vocab_size=model_vocab_size,
        tokenizer_path=next((store.tokenizer_path for store in stores.values() if store.tokenizer_path is not None), None),
    )
