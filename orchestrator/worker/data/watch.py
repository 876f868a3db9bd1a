"""Says how far the making of token files has come: lines for the command line to show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from orchestrator.tokens.request import PrepareProgress
from orchestrator.worker.data.chunks import Chunk
from orchestrator.worker.data.inputs import Inputs
from orchestrator.worker.data.shards import Progress, State
from orchestrator.worker.progress import say

_SECONDS_BETWEEN_SIGNS = 0.5


class Watch:
    """Says how far the work has come, now and then."""

    def __init__(self, inputs: Inputs) -> None:
        self._before = [0, *accumulate(file.size for file in inputs.files)]
        self._started = self._said = time.monotonic()
        self._begin = PrepareProgress(stage="", bytes=0, num_bytes=0, seconds=0.0, fresh_bytes=0)
        self._is_resumed = False
        self.now = self._begin

    def reads(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Pass chunks on, and say that the tokenizer is being trained on them."""
        for chunk in chunks:
            self._note("training the tokenizer", self._bytes(chunk.after.file, chunk.disk_bytes), 0, 0, {})
            yield chunk

    def begins(self, state: State) -> None:
        """The tokens are made from here: what was there before is not this start's work."""
        self._is_resumed = bool(state.shards)
        self._started = time.monotonic()
        self._begin = PrepareProgress(stage="", bytes=0, num_bytes=0, seconds=0.0, fresh_bytes=0, tokens=state.num_tokens)
        if state.shards:
            say(f"going on after {len(state.shards)} complete shards")

    def advanced(self, progress: Progress) -> None:
        """A group of documents has become tokens."""
        done = self._bytes(progress.file, progress.disk_bytes)
        if self._is_resumed:
            # how much of the file was behind is known from the first that is read: the rest of the file tells the time left
            self._begin, self._is_resumed = replace(self._begin, bytes=done), False
        self._note("making tokens", done, progress.tokens, progress.documents, progress.bad)

    def _bytes(self, file: int, disk_bytes: int) -> int:
        return min(self._before[file] + disk_bytes, self._before[file + 1])

    def _note(self, stage: str, done: int, tokens: int, documents: int, bad: Mapping[str, int]) -> None:
        time_now = time.monotonic()
        self.now = PrepareProgress(
            stage=stage,
            bytes=done,
            num_bytes=self._before[-1],
            seconds=time_now - self._started,
            fresh_bytes=done - self._begin.bytes,
            tokens=tokens,
            fresh_tokens=tokens - self._begin.tokens,
            documents=documents,
            bad=dict(bad),
        )
        if time_now - self._said >= _SECONDS_BETWEEN_SIGNS:
            self._said = time_now
            say(self.now.line())
