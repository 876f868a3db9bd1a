"""The process behind ``prepare``: ``python -m orchestrator.worker.prepare REQUEST.json``.

Makes token files of text. It may be killed at any moment: the same request goes on where the last complete file ended. It
leaves ``result.json``, or ``failure_rank_0.json``, beside the request.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

from orchestrator.config.enums import TextFormat
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.run_dir import write_json
from orchestrator.tokens.manifest import MANIFEST, TOKENIZER
from orchestrator.tokens.megatron import token_dtype
from orchestrator.tokens.request import RESULT, PrepareProgress, PrepareRequest, read_request
from orchestrator.tokens.store import UNFINISHED, open_tokens
from orchestrator.tokens.writer import file_sha256
from orchestrator.worker.data.chunks import Chunk, Place
from orchestrator.worker.data.encode import Encoding
from orchestrator.worker.data.inputs import Inputs, find_inputs
from orchestrator.worker.data.made_from import MADE_FROM, differences, made_from, read_made_from, write_made_from
from orchestrator.worker.data.shards import BAD_DOCUMENTS, Progress, ShardFolder, State, bad_documents, clear
from orchestrator.worker.data.tokenizer import LoadedTokenizer, copy_tokenizer, load_tokenizer, texts_of, train_tokenizer
from orchestrator.worker.failure import write_failure
from orchestrator.worker.progress import say

_FIRST_OF_A_KIND = 3
_HOPELESS = 1000
"""Bad documents after which the work ends if they are more than the good ones: a wrong field, not a wrong line."""
_SECONDS_BETWEEN_SIGNS = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the request named on the command line; 0, 1 if it failed, 2 if it was refused or none is named."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m orchestrator.worker.prepare REQUEST.json", file=sys.stderr)
        return 2
    request_file = Path(words[0])
    try:
        write_json(request_file.parent / RESULT, prepare(read_request(request_file), request_file.parent))
    except ConfigurationError as problem:
        findings = [finding.to_dict() for finding in problem.findings]
        write_json(request_file.parent / RESULT, {"status": "refused", "findings": findings})
        return 2
    except BaseException as problem:
        if isinstance(problem, BrokenProcessPool):
            problem = RuntimeError("a process was killed, most likely for want of memory: try fewer prepare.processes")
        write_failure(request_file.parent, problem)
        traceback.print_exc()
        return 1
    return 0


def prepare(request: PrepareRequest, scratch: Path) -> dict[str, Any]:
    """Make the token files; returns what ``result.json`` says. ``scratch`` is a folder that goes afterwards.

    Raises:
        ConfigurationError: the input, the tokenizer or the output cannot be used, or too many documents are bad.
    """
    inputs = find_inputs(
        [Path(path) for path in request.input],
        TextFormat(request.format),
        text_endings=request.text_endings,
        has_answers=len(request.fields) == 2,
    )
    if inputs.left_out:
        listed = ", ".join(f"{count} x {ending}" for ending, count in inputs.left_out.items())
        say(f"left out, by the ends of their names: {listed}")
    given = None if request.tokenizer is None else _given_tokenizer(Path(request.tokenizer), scratch)
    now = made_from(request, inputs, tokenizer_sha256=None if given is None else file_sha256(given.path))
    output = Path(request.output)
    is_whole = (output / MANIFEST).is_file()
    before = read_made_from(output) if output.is_dir() else None
    if before is None:
        _require_empty(output)
    elif findings := list(differences(before, now, output, is_whole=is_whole)):
        raise ConfigurationError(findings)
    watch = _Watch(inputs)
    if not is_whole:
        with _alone(output):
            write_made_from(output, now)
            tokenizer = _trained(request, inputs, watch) if given is None else _kept(given, output)
            folder = ShardFolder(output, _encoding(request, tokenizer))
            watch.begins(folder.state)
            folder.fill(
                lambda place: inputs.chunks(place, request.fields),
                shard_tokens=request.shard_tokens,
                processes=request.processes,
                advanced=lambda progress: _advanced(progress, watch, request),
            )
            _require_documents(folder.state, request)
            folder.finish(made_from={**now.summary(), "bad_documents": folder.state.bad})
    clear(output)
    return _result(output, inputs, watch, was_whole=is_whole)


def _advanced(progress: Progress, watch: _Watch, request: PrepareRequest) -> None:
    watch.advanced(progress)
    if progress.num_bad >= max(_HOPELESS, progress.documents / 2) and request.max_bad_fraction < 0.5:
        raise ConfigurationError([_too_many(progress.num_bad, progress.documents, progress.bad, request)])


class _Watch:
    """Says how far the work has come, now and then."""

    def __init__(self, inputs: Inputs) -> None:
        self._before = [0, *accumulate(file.size for file in inputs.files)]
        self._started = self._said = time.monotonic()
        self._begin = PrepareProgress(stage="", bytes=0, num_bytes=0, seconds=0.0, fresh_bytes=0)
        self.now = self._begin

    def reads(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Pass chunks on, and say that the tokenizer is being trained on them."""
        for chunk in chunks:
            self._note("training the tokenizer", self._bytes(chunk.after.file, chunk.disk_bytes), 0, 0, {})
            yield chunk

    def begins(self, state: State) -> None:
        """The tokens are made from here: what was there before is not this start's work."""
        done = self._before[state.place.file] if state.shards else 0
        self._started = time.monotonic()
        self._begin = PrepareProgress(stage="", bytes=done, num_bytes=0, seconds=0.0, fresh_bytes=0, tokens=state.num_tokens)
        if state.shards:
            say(f"going on after {len(state.shards)} complete shards")

    def advanced(self, progress: Progress) -> None:
        """A group of documents has become tokens."""
        done = self._bytes(progress.file, progress.disk_bytes)
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


def _given_tokenizer(path: Path, scratch: Path) -> LoadedTokenizer:
    folder = scratch / "tokenizer"
    folder.mkdir()
    return copy_tokenizer(path, folder)


def _kept(given: LoadedTokenizer, output: Path) -> LoadedTokenizer:
    """Put the tokenizer beside the tokens, its own file last."""
    for file in sorted(given.path.parent.iterdir(), key=lambda file: file.name == TOKENIZER):
        shutil.copyfile(file, output / f".{file.name}")
        (output / f".{file.name}").rename(output / file.name)
    return load_tokenizer(output)


def _trained(request: PrepareRequest, inputs: Inputs, watch: _Watch) -> LoadedTokenizer:
    output = Path(request.output)
    if not (output / TOKENIZER).is_file():
        say(f"training a tokenizer of {request.vocab_size} entries on the text")
        scratch = output / f".{TOKENIZER}"
        chunks = watch.reads(inputs.chunks(Place(), request.fields))
        train_tokenizer(texts_of(chunks, request.fields), request.vocab_size, scratch)
        scratch.rename(output / TOKENIZER)
    return load_tokenizer(output)


def _encoding(request: PrepareRequest, tokenizer: LoadedTokenizer) -> Encoding:
    if tokenizer.end_of_text is None:
        message = f"{request.tokenizer} names no token that ends a document"
        fix = 'put {"eos_token": "..."} into a tokenizer_config.json beside it'
        raise ConfigurationError([error("tokenizer-end", "data.tokenizer_path", message, fix)])
    return Encoding(
        tokenizer=tokenizer.path,
        vocab_size=tokenizer.vocab_size,
        end_of_document=tokenizer.end_of_text,
        dtype=token_dtype(tokenizer.vocab_size),
        fields=request.fields,
    )


def _require_empty(output: Path) -> None:
    """A folder that prepare has not begun must hold nothing: what is there is somebody's."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        other = next((path for path in output.iterdir() if path.name not in (UNFINISHED, f".{MADE_FROM}")), None)
    except OSError as problem:
        message = f"{output} cannot be made a folder: {problem.strerror}"
        raise ConfigurationError([error("prepare-output", "prepare.output", message, "name another folder")]) from None
    if other is not None:
        message = f"{output} holds {other.name}, and was not made by prepare"
        raise ConfigurationError([error("prepare-output", "prepare.output", message, "name an empty or a new folder")])


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Be the only one who writes to the folder."""
    (output / UNFINISHED).mkdir(exist_ok=True)
    with (output / UNFINISHED / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            busy = problem.errno in (errno.EAGAIN, errno.EACCES)
            message = f"another prepare is writing to {output}" if busy else f"{output} cannot be locked: {problem.strerror}"
            fix = "wait for it" if busy else "name a folder on a disk with locks"
            raise ConfigurationError([error("prepare-output", "prepare.output", message, fix)]) from None
        yield


def _require_documents(state: State, request: PrepareRequest) -> None:
    if state.num_bad > request.max_bad_fraction * state.read:
        raise ConfigurationError([_too_many(state.num_bad, state.read, state.bad, request)])
    if not state.shards:
        message = f"{', '.join(request.input)} holds no document"
        raise ConfigurationError([error("prepare-input", "prepare.input", message, "name files with text")])


def _too_many(num_bad: int, read: int, bad: Mapping[str, int], request: PrepareRequest) -> Any:
    listed = ", ".join(f"{count} {kind}" for kind, count in bad.items())
    path = Path(request.output) / BAD_DOCUMENTS
    named: dict[str, list[str]] = {}
    for entry in bad_documents(path.parent):
        first = named.setdefault(entry["defect"], [])
        if len(first) < _FIRST_OF_A_KIND:
            first.append(f"{entry['place']}: {entry['detail']}")
    examples = "; ".join(example for examples in named.values() for example in examples)
    share = ceil(num_bad / read * 10**4) / 10**4
    message = (
        f"{num_bad} of {read} documents are bad ({listed}), more than prepare.max_bad_fraction="
        f"{request.max_bad_fraction:g} allows: {examples}; all are in {path}"
    )
    fix = f"repair them and prepare into another folder, or leave them out and go on: prepare.max_bad_fraction={share:g}"
    return error("prepare-bad-documents", "prepare.max_bad_fraction", message, fix)


def _result(output: Path, inputs: Inputs, watch: _Watch, *, was_whole: bool) -> dict[str, Any]:
    store = open_tokens(output, field="prepare.output")
    assert store.manifest is not None
    now = watch.now
    return {
        "status": "completed",
        "was_complete": was_whole,
        "tokens": store.num_tokens,
        "documents": store.num_documents,
        "bad_documents": sum(store.manifest.made_from["bad_documents"].values()),
        "shards": len(store.files),
        "vocab_size": store.vocab_size,
        "end_of_document": store.end_of_document,
        "dtype": store.manifest.dtype,
        "unigram_entropy": store.unigram_entropy,
        "input_files": len(inputs.files),
        "input_bytes": inputs.num_bytes,
        "left_out": dict(inputs.left_out),
        "seconds": now.seconds,
        "tokens_per_second": now.fresh_tokens / now.seconds if now.seconds else None,
    }


if __name__ == "__main__":
    sys.exit(main())
