"""The tokens that a run reads, by source: prepared ones are opened, others are made once on each host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.tokens.sources import evaluation_paths, open_all, training_paths, vocabulary_findings
from orchestrator.units import format_count
from orchestrator.worker.data.prepare import prepare_data
from orchestrator.worker.data.sequences import TokenStream
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Stores by name: the sources of training in the order of the blend, and the further held-out sets."""

    sources: Mapping[str, TokenStream]
    evaluation: Mapping[str, TokenStream] = field(default_factory=dict)
    model_vocab_size: int
    """Rows of the model's embedding: every token is below it."""
    tokenizer_path: Path | None = None
    """The tokenizer that made the tokens of the first source; None where that is not known."""

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
    named = training_paths(config.data)
    sets = evaluation_paths(config.data)
    stores, evaluation = open_all(named), open_all(sets)
    options = [(stores[entry.name], entry.option) for entry in named] + [
        (evaluation[entry.name], entry.option) for entry in sets
    ]
    findings = [
        finding
        for store, option in options
        for finding in vocabulary_findings(store, option, model_vocab_size=model_vocab_size)
    ]
    if findings:
        raise ConfigurationError(findings)
    if not named:
        prepared = prepare_data(config, model_vocab_size=model_vocab_size, advanced=advanced)
        return RunData(
            sources={config.data.source.value: prepared.token_file},
            evaluation=evaluation,
            model_vocab_size=model_vocab_size,
            tokenizer_path=prepared.tokenizer_path,
        )
    for name, store in [*stores.items(), *evaluation.items()]:
        amount = f"{format_count(store.num_tokens)} tokens in {format_count(store.num_documents)} documents"
        say(f"data: {name}: {amount} of {store.path}")
    return RunData(
        sources=stores,
        evaluation=evaluation,
        model_vocab_size=model_vocab_size,
        tokenizer_path=next(iter(stores.values())).tokenizer_path,
    )
