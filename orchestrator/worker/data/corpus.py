"""The text of a run: which files it is made of, and what tells one corpus from another."""

from __future__ import annotations

import hashlib
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import DataSource
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error

PIECE_BYTES = 2**20
"""Text is read in pieces of about this size, so that a file larger than memory can be read."""

NOT_LIBRARY_SOURCE = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "turtledemo",
        "lib2to3",
        "pydoc_data",
        "encodings",
        "__pycache__",
    }
)
"""Folders of the standard library that hold other people's packages, tests, generated tables or applications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of one document's text. ``ends_document`` marks its last."""

    text: str
    ends_document: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files in the order they are read, one document each. ``fingerprint`` changes when the text does.

    ``advanced`` is called for each piece that is read.
    """

    source: DataSource
    root: Path
    files: tuple[Path, ...]
    max_bytes: int | None
    fingerprint: str
    advanced: Callable[[], None]

    @property
    def num_bytes(self) -> int:
        """Bytes on disk that are read."""
        size = sum(file.stat().st_size for file in self.files)
        return size if self.max_bytes is None else min(size, self.max_bytes)

    def pieces(self) -> Iterator[Piece]:
        """The text, at most ``max_bytes`` of it in UTF-8.

        Raises:
            ConfigurationError: a file is not UTF-8 text.
        """
        left = self.max_bytes
        for file in self.files:
            if left is not None and left <= 0:
                return
            for piece in self._document(file):
                size = len(piece.text.encode())
                if left is not None and size >= left:
                    yield Piece(text=piece.text.encode()[:left].decode(errors="ignore"), ends_document=True)
                    return
                yield piece
                left = None if left is None else left - size

    def _document(self, file: Path) -> Iterator[Piece]:
        try:
            with self._open(file) as stream:
                lines = stream.readlines(PIECE_BYTES)
                while lines:
                    self.advanced()
                    following = stream.readlines(PIECE_BYTES)
                    yield Piece(text="".join(lines), ends_document=not following)
                    lines = following
        except (UnicodeDecodeError, SyntaxError) as problem:
            message = f"{file} is not UTF-8 text: {problem}"
            raise ConfigurationError(
                [error("data-text", "data.path", message, "convert the file to UTF-8, or leave it out: data.file_suffixes")]
            ) from None

    def _open(self, file: Path) -> TextIO:
        # Python source may name another encoding in its first two lines.
        return tokenize.open(file) if self.source is DataSource.python_stdlib else file.open(encoding="utf-8")


def find_corpus(config: DataConfig, *, advanced: Callable[[], None] = lambda: None) -> Corpus:
    """The files that ``config`` names, sorted by their path.

    Raises:
        ConfigurationError: the path does not exist, or no file counts.
    """
    assert config.source is not DataSource.synthetic, "random tokens have no text"
    if config.source is DataSource.python_stdlib:
        root = Path(sysconfig.get_path("stdlib"))
        files = sorted(file for file in root.rglob("*.py") if NOT_LIBRARY_SOURCE.isdisjoint(file.relative_to(root).parts))
    else:
        root = _text_root(config)
        suffixes = tuple(config.file_suffixes)
        files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if _counts(file, suffixes))
    if not any(file.stat().st_size for file in files):
        message = f"{root} holds no text in files that end in {', '.join(config.file_suffixes)}"
        raise ConfigurationError(
            [error("data-empty", "data.path", message, "name a folder that does, or other endings: data.file_suffixes=[...]")]
        )
    return Corpus(
        source=config.source,
        root=root,
        files=tuple(files),
        max_bytes=config.max_bytes,
        fingerprint=_fingerprint(config, root, files),
        advanced=advanced,
    )


def _text_root(config: DataConfig) -> Path:
    root = Path(config.path or "").expanduser()
    if config.path is None or not root.exists():
        message = "data.source=text needs a file or a folder" if config.path is None else f"{root} does not exist on this host"
        raise ConfigurationError(
            [error("data-path", "data.path", message, "name a text file or a folder of text files that every host has")]
        )
    return root


def _counts(file: Path, suffixes: tuple[str, ...]) -> bool:
    return file.name.endswith(suffixes) and file.is_file()


def _fingerprint(config: DataConfig, root: Path, files: list[Path]) -> str:
    """Names, sizes and times of change stand for the content: reading a large corpus at every start would take minutes."""
    digest = hashlib.sha256(f"{config.source} {config.max_bytes}\n".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
