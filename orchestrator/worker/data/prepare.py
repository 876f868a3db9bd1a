"""The data of a run that makes its own tokens on this host: text to tokens, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.enums import DataSource
from orchestrator.config.schema import RunConfig
from orchestrator.tokens.store import TokenStore
from orchestrator.units import format_bytes, format_count, format_seconds
from orchestrator.worker.data.corpus import find_corpus
from orchestrator.worker.data.tokens import obtain_tokenizer, random_tokens, tokens_of_text
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """The tokens of a run, and the tokenizer that made them (None for random tokens)."""

    tokens: TokenStore
    tokenizer_path: Path | None


def prepare_data(config: RunConfig, *, model_vocab_size: int, advanced: Callable[[], None] = lambda: None) -> PreparedData:
    """Find or make the tokens. Every process calls this; one of a host works and the others wait for it.

    The one that works calls ``advanced`` for each chunk of text.

    Raises:
        ConfigurationError: the text or the tokenizer cannot be used.
    """
    started = time.monotonic()
    cache_dir = Path(config.data.cache_dir)
    if config.data.source is DataSource.synthetic:
        tokens = random_tokens(
            num_tokens=config.data.synthetic_tokens, vocab_size=model_vocab_size, seed=config.seed, cache_dir=cache_dir
        )
        tokenizer_path = None
        origin = "random"
    else:
        corpus = find_corpus(config.data, advanced=advanced)
        origin = f"{len(corpus.files)} files, {format_bytes(corpus.num_bytes)} of {corpus.root}"
        say(f"data: {origin}; tokenizer and tokens are made once and kept in {cache_dir.expanduser()}")
        tokenizer = obtain_tokenizer(config.data, corpus, model_vocab_size=model_vocab_size)
        tokens = tokens_of_text(corpus, tokenizer, cache_dir)
        tokenizer_path = tokenizer.path
    say(
        f"data: {format_count(tokens.num_tokens)} tokens ({origin}), vocabulary {tokens.vocab_size}, "
        f"entropy of the token frequencies {tokens.unigram_entropy:.3f} nats, "
        f"ready after {format_seconds(time.monotonic() - started)}"
    )
    return PreparedData(tokens=tokens, tokenizer_path=tokenizer_path)
