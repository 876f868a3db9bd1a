"""The prepared tokens that the options name: those of training, and those of the further held-out sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import DataSource
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.tokens.blend import Blend, blend_of
from orchestrator.tokens.store import TokenStore, open_tokens

_SAMPLES = 64
_SAMPLE_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPath:
    """What an option names. ``name`` is what people call it."""

    name: str
    option: str
    path: str


def training_paths(data: DataConfig) -> list[TokenPath]:
    """The prepared tokens of training, in the order of the blend; none where the run makes its tokens itself."""
    if data.source is DataSource.tokens and data.path:
        return [TokenPath(name=data.source.value, option="data.path", path=data.path)]
    if data.source is DataSource.mixture:
        named = sorted(data.sources.items())
        return [TokenPath(name=name, option=f"data.sources.{name}.path", path=source.path) for name, source in named]
    return []


def evaluation_paths(data: DataConfig) -> list[TokenPath]:
    """The further held-out sets."""
    return [TokenPath(name=name, option=f"data.evaluation.{name}", path=path) for name, path in data.evaluation.items()]


def blend(data: DataConfig) -> Blend:
    """How often each of the sources is read; by their names, so that the order of the options does not matter."""
    if data.source is not DataSource.mixture:
        return Blend(parts=(1,))
    return blend_of([source.weight for _, source in sorted(data.sources.items())])


def open_all(paths: Iterable[TokenPath]) -> dict[str, TokenStore]:
    """The stores of ``paths`` by name.

    Raises:
        ConfigurationError: with every one that cannot be read.
    """
    stores: dict[str, TokenStore] = {}
    findings: list[Finding] = []
    for named in paths:
        try:
            stores[named.name] = open_tokens(named.path, field=named.option)
        except ConfigurationError as problem:
            findings += problem.findings
    if findings:
        raise ConfigurationError(findings)
    return stores


def vocabulary_findings(store: TokenStore, option: str, *, model_vocab_size: int) -> list[Finding]:
    """An error where the tokens need more rows than the embedding has; those of Megatron files are looked at in samples."""
    needed = store.vocab_size if store.vocab_size is not None else _largest_sampled(store) + 1
    if needed <= model_vocab_size:
        return []
    has = "come from a vocabulary of" if store.vocab_size is not None else "have ids up to"
    number = needed if store.vocab_size is not None else needed - 1
    message = f"the tokens of {option}={store.path} {has} {number}, model.vocab_size is {model_vocab_size}"
    fix = f"set model.vocab_size={needed} or more, or use tokens of the model's own tokenizer"
    return [error("tokenizer-vocabulary", option, message, fix)]


def _largest_sampled(store: TokenStore) -> int:
    starts = np.linspace(0, max(0, store.num_tokens - _SAMPLE_TOKENS), _SAMPLES).astype(np.int64).tolist()
    samples = (store.read(start, min(start + _SAMPLE_TOKENS, store.num_tokens)) for start in sorted(set(starts)))
    return max((int(sample.max()) for sample in samples if sample.size), default=-1)
