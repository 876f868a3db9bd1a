"""The tokenizer of a run: one that is given, or a byte-level BPE trained on the text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.tokens.manifest import TOKENIZER
from orchestrator.worker.data.chunks import Chunk
from orchestrator.worker.data.documents import Document, documents

END_OF_TEXT = "<|endoftext|>"
KNOWN_ENDS_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
LIBRARY = tokenizers.__version__
SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
BESIDE_A_TOKENIZER = (SETTINGS, SPECIAL_TOKENS, "chat_template.jinja", "vocab.json", "merges.txt")
"""What a Hugging Face folder has beside its ``tokenizer.json``."""
_PARTS_OF_A_TOKENIZER = ("tokenizer*", "vocab*", "*.model")


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
        """The token put after each document: the ``eos_token`` that the folder names, else one known by its name; or None.

        Raises:
            ConfigurationError: the folder names one that the tokenizer has not.
        """
        named = _named_end(self.path.parent)
        if named is None:
            ids = (self.tokenizer.token_to_id(name) for name in KNOWN_ENDS_OF_TEXT)
            return next((id for id in ids if id is not None), None)
        file, name = named
        found: int | None = self.tokenizer.token_to_id(name)
        if found is None:
            message = f"{file.name} names the eos_token {name!r}, and the tokenizer has no such token"
            fix = f"name one of its tokens there, or add the token to {TOKENIZER}"
            raise ConfigurationError([error("tokenizer-end", "data.tokenizer_path", message, fix)])
        return found


def load_tokenizer(path: Path) -> LoadedTokenizer:
    """The tokenizer in a ``tokenizer.json``, or in a folder that has one.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        file = path / TOKENIZER if path.is_dir() else path
    except PermissionError as problem:
        raise _no_tokenizer(path, problem.strerror) from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as problem:  # the library raises a bare Exception
        raise _no_tokenizer(file, problem) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # A special token that is spelt out in the text is text.
    tokenizer.encode_special_tokens = True
    return LoadedTokenizer(path=file, tokenizer=tokenizer)


def copy_tokenizer(path: Path, folder: Path) -> LoadedTokenizer:
    """Put the tokenizer of ``path``, a file or a folder, into ``folder`` with what is beside it.

    A folder without ``tokenizer.json`` is converted by transformers.

    Raises:
        ConfigurationError: there is no tokenizer that can be used.
    """
    converted = _converted(path, folder)
    if converted is not None:
        return converted
    loaded = load_tokenizer(path)
    for name in BESIDE_A_TOKENIZER:
        if (loaded.path.parent / name).is_file():
            shutil.copyfile(loaded.path.parent / name, folder / name)
    shutil.copyfile(loaded.path, folder / TOKENIZER)
    return load_tokenizer(folder)


def train_tokenizer(texts: Iterable[str], vocab_size: int, file: Path) -> None:
    """Train a byte-level BPE and save it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer=trainer)
    tokenizer.save(str(file))


def texts_of(chunks: Iterable[Chunk], fields: tuple[str, ...]) -> Iterator[str]:
    """The text in ``chunks``, without what is no document."""
    for chunk in chunks:
        for entry in documents(chunk, fields):
            if isinstance(entry, Document):
                yield from entry.parts


def _named_end(folder: Path) -> tuple[Path, str] | None:
    """The ``eos_token`` that a Hugging Face folder names, and the file that does; older ones have it in a file of its own."""
    for file in (folder / SETTINGS, folder / SPECIAL_TOKENS):
        try:
            token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
        except (OSError, ValueError, AttributeError):
            continue
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            return file, name
    return None


def _no_tokenizer(file: Path, problem: object) -> ConfigurationError:
    fix = "name a tokenizer.json, a folder that has one, or null to train one"
    return ConfigurationError([error("tokenizer-file", "data.tokenizer_path", f"{file} is not a tokenizer: {problem}", fix)])


def _converted(source: Path, folder: Path) -> LoadedTokenizer | None:
    """The tokenizer of a folder without ``tokenizer.json``, converted into ``folder`` by transformers; None of others."""
    try:
        if not source.is_dir() or (source / TOKENIZER).is_file():
            return None
    except PermissionError as problem:
        raise _no_tokenizer(source, problem.strerror) from None
    try:
        if not any(file for pattern in _PARTS_OF_A_TOKENIZER for file in source.glob(pattern)):
            raise ValueError("it holds no tokenizer")
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(str(source), local_files_only=True)
        if not loaded.is_fast:
            raise ValueError("it has no fast form")
        loaded.save_pretrained(str(folder))
        return load_tokenizer(folder)
    except Exception as problem:  # whatever is in the folder, and whatever the libraries make of it
        message = f"{source} has no {TOKENIZER}, and transformers cannot make one of it: {problem}".splitlines()[0]
        fix = "name a tokenizer.json, or a folder with one"
        raise ConfigurationError([error("tokenizer-file", "data.tokenizer_path", message, fix)]) from None
