"""The prepared tokens that the options name: those of training, and those of the further held-out sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import DataSource
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error, warning
from orchestrator.tokens.blend import Blend, blend_of
from orchestrator.tokens.manifest import TOKENIZER
from orchestrator.tokens.megatron import bin_path, idx_path
from orchestrator.tokens.store import TokenStore, expanded, open_tokens

_SAMPLES = 64
_SAMPLE_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPath:
    """What an option names. ``name`` is what people call it."""

    name: str
    option: str
    path: str


def is_there(path: str) -> bool:
    """Whether a path, or the pair of files that it is the prefix of, is on this machine; yes if nobody lets us look."""
    place = expanded(path)
    try:
        return place.exists() or (idx_path(place).exists() and bin_path(place).exists())
    except PermissionError:
        return True


def data_paths(data: DataConfig) -> dict[str, str]:
    """The options that name what the workers read, and are set."""
    prepared = {entry.option: entry.path for entry in (*training_paths(data), *evaluation_paths(data))}
    paths = {"data.path": data.path, "data.tokenizer_path": data.tokenizer_path, **prepared}
    return {option: path for option, path in paths.items() if path}


def training_paths(data: DataConfig) -> list[TokenPath]:
    """The prepared tokens of training, in the order of the blend; none where the run makes its tokens itself."""
    if data.source is DataSource.tokens and data.path:
        return [TokenPath(name=data.source.value, option="data.path", path=data.path)]
    if data.source is DataSource.mixture:
        named = [(name, source.path) for name, source in sorted(data.sources.items()) if source.path]
        return [TokenPath(name=name, option=f"data.sources.{name}.path", path=path) for name, path in named]
    return []


def evaluation_paths(data: DataConfig) -> list[TokenPath]:
    """The further held-out sets."""
    return [TokenPath(name=name, option=f"data.evaluation.{name}", path=path) for name, path in data.evaluation.items()]


def blend(data: DataConfig) -> Blend:
    """How often each of the sources is read; by their names, so that the order of the options does not matter."""
    if data.source is not DataSource.mixture:
        return Blend(parts=(1,))
    return blend_of([source.weight for _, source in sorted(data.sources.items())])


def open_sources(data: DataConfig, *, model_vocab_size: int | None) -> tuple[dict[str, TokenStore], dict[str, TokenStore]]:
    """The stores of training in the order of the blend, and the further held-out sets, both by name.

    With ``model_vocab_size`` tokens that the model's embedding has no rows for are refused as well.

    Raises:
        ConfigurationError: with everything that is wrong with any of them.
    """
    findings: list[Finding] = []

    def opened(paths: Iterable[TokenPath]) -> dict[str, TokenStore]:
        stores = {}
        for named in paths:
            try:
                stores[named.name] = store = open_tokens(named.path, field=named.option)
            except ConfigurationError as problem:
                findings.extend(problem.findings)
            else:
                findings.extend([] if model_vocab_size is None else _vocabulary_findings(store, named, model_vocab_size))
        return stores

    training, evaluation = opened(training_paths(data)), opened(evaluation_paths(data))
    if findings:
        raise ConfigurationError(findings)
    return training, evaluation


def tokenizer_findings(stores: Iterable[TokenStore]) -> list[Finding]:
    """A warning where tokens were made by different tokenizer files: the same number may mean different text."""
    known = [
        (store.manifest.tokenizer_sha256, store.path)
        for store in stores
        if store.manifest is not None and store.manifest.tokenizer_sha256 is not None
    ]
    others = [str(path) for checksum, path in known if checksum != known[0][0]]
    if not others:
        return []
    first = known[0][1]
    message = f"{', '.join(others)}: the tokenizer.json is another one than that of {first}"
    fix = f"compare the files; if their vocabularies differ, prepare again with data.tokenizer_path={first / TOKENIZER}"
    return [warning("tokenizers-differ", "data", message, fix)]


def _vocabulary_findings(store: TokenStore, named: TokenPath, model_vocab_size: int) -> list[Finding]:
    """An error where the tokens have no rows in the embedding; those of Megatron files are looked at in samples."""
    lowest, highest = _sampled_range(store) if store.vocab_size is None else (0, store.vocab_size - 1)
    if lowest < 0:
        message = f"the tokens of {named.path} have ids down to {lowest}, which no embedding has a row for"
        return [error("tokenizer-vocabulary", named.option, message, "prepare them again: ids begin at 0")]
    if highest < model_vocab_size:
        return []
    has = f"have ids up to {highest}" if store.vocab_size is None else f"come from a vocabulary of {store.vocab_size}"
    message = f"the tokens of {named.path} {has}, model.vocab_size is {model_vocab_size}"
    fix = f"set model.vocab_size={highest + 1} or more, or use tokens of the model's own tokenizer"
    return [error("tokenizer-vocabulary", named.option, message, fix)]


def _sampled_range(store: TokenStore) -> tuple[int, int]:
    """The lowest and the highest id in samples of the tokens; 0 and -1 if there are none."""
    starts = np.linspace(0, max(0, store.num_tokens - _SAMPLE_TOKENS), _SAMPLES).astype(np.int64).tolist()
    samples = [store.read(start, min(start + _SAMPLE_TOKENS, store.num_tokens)) for start in sorted(set(starts))]
    filled = [sample for sample in samples if sample.size]
    return min((int(sample.min()) for sample in filled), default=0), max((int(sample.max()) for sample in filled), default=-1)
