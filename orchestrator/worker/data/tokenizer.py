"""The tokenizer of a run: one that is given, or a byte-level BPE trained on the corpus and kept in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from orchestrator.config.data import DataConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.worker.data.cache import cache_key, cached_folder
from orchestrator.worker.data.corpus import Corpus

END_OF_TEXT = "<|endoftext|>"
KNOWN_ENDS_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
FILE_NAME = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer and the file it is in."""

    path: Path
    tokenizer: Tokenizer

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def end_of_text(self) -> int | None:
        """The token put between documents; None if this tokenizer has none that is known by name."""
        ids = (self.tokenizer.token_to_id(name) for name in KNOWN_ENDS_OF_TEXT)
        return next((id for id in ids if id is not None), None)


def obtain_tokenizer(config: DataConfig, corpus: Corpus, *, model_vocab_size: int) -> LoadedTokenizer:
    """The tokenizer that ``config`` names, or the cached or newly trained one of ``corpus``.

    Raises:
        ConfigurationError: the file cannot be read, or has ids the model's embedding does not have.
    """
    loaded = _load(Path(config.tokenizer_path).expanduser()) if config.tokenizer_path else _trained(config, corpus)
    if loaded.vocab_size > model_vocab_size:
        message = f"the tokenizer {loaded.path} has {loaded.vocab_size} ids, model.vocab_size is {model_vocab_size}"
        raise ConfigurationError(
            [
                error(
                    "tokenizer-vocabulary", "model.vocab_size", message, f"set model.vocab_size to at least {loaded.vocab_size}"
                )
            ]
        )
    return loaded


def _load(path: Path) -> LoadedTokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as problem:  # the library raises a bare Exception
        message = f"{path} is not a tokenizer: {problem}"
        raise ConfigurationError(
            [error("tokenizer-file", "data.tokenizer_path", message, "name a tokenizer.json, or null to train one")]
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # A special token that is spelt out in the text is text.
    tokenizer.encode_special_tokens = True
    return LoadedTokenizer(path=path, tokenizer=tokenizer)


def _trained(config: DataConfig, corpus: Corpus) -> LoadedTokenizer:
    shape = {
        "kind": "byte-level BPE",
        "corpus": corpus.fingerprint,
        "vocab_size": config.tokenizer_vocab_size,
        "library": tokenizers.__version__,
    }
    folder = Path(config.cache_dir).expanduser() / "tokenizers" / cache_key(shape)

    def build(scratch: Path) -> None:
        _train(corpus, config.tokenizer_vocab_size).save(str(scratch / FILE_NAME))

    cached_folder(folder, is_complete=lambda path: (path / FILE_NAME).is_file(), build=build)
    return _load(folder / FILE_NAME)


def _train(corpus: Corpus, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece.text for piece in corpus.pieces()), trainer=trainer)
    return tokenizer
