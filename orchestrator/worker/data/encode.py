"""Documents to tokens, in one process or in several; the order is that of the input, and memory is bounded."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.data.chunks import Chunk, Place
from orchestrator.worker.data.documents import BadDocument, Defect, Document, documents
from orchestrator.worker.data.tokenizer import load_tokenizer

_GROUPS_AHEAD = 3
"""Groups a process has waiting, so that it never waits for the reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How documents become tokens. ``fields`` names the text, or the prompt and the answer, in a line or row.

    ``end_of_document`` is appended to each document; None = nothing is.
    """

    tokenizer: Path
    vocab_size: int
    end_of_document: int | None
    dtype: np.dtype[Any]
    fields: tuple[str, ...] = ("text",)

    @property
    def has_answers(self) -> bool:
        """Whether a document is a prompt and its answer."""
        return len(self.fields) == 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The tokens of a group of chunks: documents of ``lengths`` tokens, joined.

    The first may continue the last one of the group before; the last one may go on (``ends_document``).
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    answer_starts: NDArray[np.int32] | None
    ends_document: bool
    bad: list[BadDocument]
    num_read: int
    """Documents that ended in the group, bad ones too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An encoded group, where reading goes on after it, and how much of that file is behind."""

    encoded: Encoded
    after: Place
    disk_bytes: int


class Encoder:
    """Makes tokens in this process."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._tokenizer = load_tokenizer(encoding.tokenizer).tokenizer
        self._end = [] if encoding.end_of_document is None else [encoding.end_of_document]

    def encode(self, group: Sequence[Chunk]) -> Encoded:
        """The tokens of ``group``."""
        found = [entry for chunk in group for entry in documents(chunk, self._encoding.fields)]
        bad = [entry for entry in found if isinstance(entry, BadDocument)]
        good = [entry for entry in found if isinstance(entry, Document)]
        texts = [part for document in good for part in document.parts]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        pieces: list[list[int]] = []
        lengths: list[int] = []
        answers: list[int] = []
        for document in good:
            parts = [next(encoded).ids for _ in document.parts]
            if document.begins and document.ends and not all(parts):
                bad.append(BadDocument(place=document.place, defect=Defect.empty, detail="the tokenizer makes no token of it"))
                continue
            pieces += [*parts, self._end] if document.ends else parts
            length = sum(map(len, parts)) + (len(self._end) if document.ends else 0)
            if not document.begins and lengths:
                lengths[-1] += length
            else:
                lengths.append(length)
            answers.append(len(parts[0]))
        return Encoded(
            tokens=np.fromiter(chain.from_iterable(pieces), dtype=self._encoding.dtype, count=sum(lengths)),
            lengths=np.array(lengths, dtype=np.int64),
            answer_starts=np.array(answers, dtype=np.int32) if self._encoding.has_answers else None,
            ends_document=all(document.ends for document in good[-1:]),
            bad=bad,
            num_read=sum(document.ends for document in good) + len(found) - len(good),
        )


def encoded_in_order(groups: Iterator[Sequence[Chunk]], encoding: Encoding, *, processes: int) -> Generator[Read, None, None]:
    """The tokens of ``groups``, made by so many processes; 1 = by this one, with the tokenizer's own threads.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    if processes == 1:
        encoder = Encoder(encoding)
        for group in groups:
            yield Read(encoded=encoder.encode(group), after=group[-1].after, disk_bytes=group[-1].disk_bytes)
        return
    # fork would copy the locks of the tokenizer's threads as they happen to be
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(encoding,))
    waiting: deque[tuple[Future[Encoded], Place, int]] = deque()
    try:
        for group in groups:
            waiting.append((pool.submit(_encode, group), group[-1].after, group[-1].disk_bytes))
            if len(waiting) > _GROUPS_AHEAD * processes:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _first(waiting: deque[tuple[Future[Encoded], Place, int]]) -> Read:
    future, after, disk_bytes = waiting.popleft()
    return Read(encoded=future.result(), after=after, disk_bytes=disk_bytes)


_encoder: Encoder | None = None
"""That of a process of the pool."""


def _begin(encoding: Encoding) -> None:
    global _encoder
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # one thread a process: the processes are as many as the cores
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Encoder(encoding)


def _encode(group: Sequence[Chunk]) -> Encoded:
    assert _encoder is not None
    return _encoder.encode(group)


def _end_with_parent() -> None:
    """A pool's process waits for work for ever when its parent is killed."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
