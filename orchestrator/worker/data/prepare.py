"""The data of a run on this host: text to tokens, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.enums import DataSource
from orchestrator.config.schema import RunConfig
from orchestrator.units import format_bytes, format_count, format_seconds
from orchestrator.worker.data.corpus import find_corpus
from orchestrator.worker.data.tokenizer import obtain_tokenizer
from orchestrator.worker.data.tokens import TokenFile, synthetic_token_file, token_file_of_text
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """The token file of a run, and the tokenizer that made it (None for random tokens)."""

    token_file: TokenFile
    tokenizer_path: Path | None


def prepare_data(config: RunConfig, *, model_vocab_size: int, advanced: Callable[[], None] = lambda: None) -> PreparedData:
    """Find or make the token file. Every process calls this; one of a host works and the others wait for it.

    The one that works calls ``advanced`` for each piece of text.

    Raises:
        ConfigurationError: the text or the tokenizer cannot be used.
    """
    started = time.monotonic()
    cache_dir = Path(config.data.cache_dir)
    if config.data.source is DataSource.synthetic:
        token_file = synthetic_token_file(
            num_tokens=config.data.synthetic_tokens, vocab_size=model_vocab_size, seed=config.seed, cache_dir=cache_dir
        )
        tokenizer_path = None
        origin = "random"
    else:
        corpus = find_corpus(config.data, advanced=advanced)
        origin = f"{len(corpus.files)} files, {format_bytes(corpus.num_bytes)} of {corpus.root}"
        say(f"data: {origin}; tokenizer and tokens are made once and kept in {cache_dir.expanduser()}")
        tokenizer = obtain_tokenizer(config.data, corpus, model_vocab_size=model_vocab_size)
        token_file = token_file_of_text(corpus, tokenizer, cache_dir)
        tokenizer_path = tokenizer.path
    index = token_file.index
    say(
        f"data: {format_count(index.num_tokens)} tokens ({origin}), vocabulary {index.vocab_size}, "
        f"entropy of the token frequencies {index.unigram_entropy:.3f} nats, "
        f"ready after {format_seconds(time.monotonic() - started)}"
    )
    return PreparedData(token_file=token_file, tokenizer_path=tokenizer_path)
