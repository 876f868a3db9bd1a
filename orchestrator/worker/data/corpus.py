"""The text of a run that makes its own tokens: which files it is, and what tells one corpus from another."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import DataSource, TextFormat
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.worker.data.chunks import Chunk, InputFile, Place, unreadable
from orchestrator.worker.data.folders import files_below, same_file
from orchestrator.worker.data.plain_files import text_chunks

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
class Corpus:
    """Files in the order they are read, one document each. ``fingerprint`` changes when the text does.

    ``advanced`` is called for each chunk that is read.
    """

    root: Path
    files: tuple[InputFile, ...]
    max_bytes: int | None
    fingerprint: str
    advanced: Callable[[], None]

    @property
    def num_bytes(self) -> int:
        """Bytes on disk that are read."""
        size = sum(file.size for file in self.files)
        return size if self.max_bytes is None else min(size, self.max_bytes)

    def chunks(self) -> Iterator[Chunk]:
        """The text, at most ``max_bytes`` of it in UTF-8.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        left = self.max_bytes
        for number, file in enumerate(self.files):
            for chunk in text_chunks(file, Place(file=number), field="data.path"):
                self.advanced()
                assert isinstance(chunk.content, bytes)
                if left is not None and len(chunk.content) >= left:
                    whole = chunk.content[:left].decode(errors="ignore").encode()
                    if whole:
                        yield replace(chunk, content=whole, ends_document=True)
                    return
                yield chunk
                left = None if left is None else left - len(chunk.content)


def find_corpus(config: DataConfig, *, advanced: Callable[[], None] = lambda: None) -> Corpus:
    """The files that ``config`` names, sorted by their path.

    Raises:
        ConfigurationError: the path does not exist, or no file counts.
    """
    is_python = config.source is DataSource.python_stdlib
    if is_python:
        root = Path(sysconfig.get_path("stdlib"))
        paths = sorted(file for file in root.rglob("*.py") if NOT_LIBRARY_SOURCE.isdisjoint(file.relative_to(root).parts))
    else:
        assert config.source is DataSource.text, "other sources have tokens already"
        root = _text_root(config)
        suffixes = tuple(config.file_suffixes)
        paths = [root] if root.is_file() else _below(root, suffixes)
    files = tuple(_input_file(path, is_python=is_python) for path in paths)
    if not any(file.size for file in files):
        message = f"{root} holds no text in files that end in {', '.join(config.file_suffixes)}"
        raise ConfigurationError(
            [error("data-empty", "data.path", message, "name a folder that does, or other endings: data.file_suffixes=[...]")]
        )
    return Corpus(
        root=root,
        files=files,
        max_bytes=config.max_bytes,
        fingerprint=_fingerprint(config, root, files),
        advanced=advanced,
    )


def _text_root(config: DataConfig) -> Path:
    root = Path(config.path or "").expanduser()
    try:
        is_there = config.path is not None and root.exists()
    except OSError as problem:
        raise unreadable(root, problem.strerror, field="data.path") from None
    if not is_there:
        message = "data.source=text needs a file or a folder" if config.path is None else f"{root} does not exist on this host"
        raise ConfigurationError(
            [error("data-path", "data.path", message, "name a text file or a folder of text files that every host has")]
        )
    return root


def _below(root: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder of text that count; none is read twice."""
    try:
        paths = [file for file in files_below(root) if file.name.endswith(suffixes)]
    except OSError as problem:
        raise unreadable(Path(problem.filename), problem.strerror, field="data.path") from None
    same = same_file(paths)
    if same is not None:
        message = f"{same[0]} and {same[1]} are the same file"
        raise ConfigurationError([error("data-path", "data.path", message, "leave one of them out")])
    return paths


def _input_file(path: Path, *, is_python: bool) -> InputFile:
    try:
        status = path.stat()
    except OSError as problem:
        raise unreadable(path, problem.strerror, field="data.path") from None
    return InputFile(path=path, format=TextFormat.text, size=status.st_size, mtime_ns=status.st_mtime_ns, is_python=is_python)


def _fingerprint(config: DataConfig, root: Path, files: tuple[InputFile, ...]) -> str:
    """Names, sizes and times of change stand for the content: reading a large corpus at every start would take minutes."""
    digest = hashlib.sha256(f"{config.source} {config.max_bytes}\n".encode())
    for file in files:
        digest.update(f"{file.path.relative_to(root)} {file.size} {file.mtime_ns}\n".encode())
    return digest.hexdigest()
