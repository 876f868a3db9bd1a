"""The process behind ``prepare``: ``python -m orchestrator.worker.prepare REQUEST.json``.

Makes token files of text. It may be killed at any moment: the same request goes on where the last complete file ended. It
leaves ``result.json``, or ``failure_rank_0.json``, beside the request.
"""

from __future__ import annotations

import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from math import ceil
from pathlib import Path
from typing import Any

from orchestrator.config.enums import TextFormat
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.run_dir import write_json
from orchestrator.tokens.manifest import MANIFEST, TOKENIZER
from orchestrator.tokens.megatron import token_dtype
from orchestrator.tokens.request import RESULT, PrepareRequest, read_request
from orchestrator.tokens.store import open_tokens
from orchestrator.worker.data.chunks import Place
from orchestrator.worker.data.documents import Defect
from orchestrator.worker.data.encode import Encoding
from orchestrator.worker.data.inputs import Inputs, find_inputs
from orchestrator.worker.data.made_from import MadeFrom, differences, made_from, read_made_from
from orchestrator.worker.data.output import begun, wait_for_others
from orchestrator.worker.data.shards import BAD_DOCUMENTS, Progress, ShardFolder, State, bad_documents, clear
from orchestrator.worker.data.tokenizer import LoadedTokenizer, copy_tokenizer, load_tokenizer, texts_of, train_tokenizer
from orchestrator.worker.data.watch import Watch
from orchestrator.worker.failure import write_failure
from orchestrator.worker.progress import say

_FIRST_OF_A_KIND = 3
_HOPELESS = 1000
"""Bad documents after which the work ends if they are more than the good ones: a wrong field, not a wrong line."""


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
    now = made_from(request, inputs, given)
    output = Path(request.output)
    watch = Watch(inputs)
    wait_for_others(output)
    is_whole = (output / MANIFEST).is_file()
    if is_whole:
        _require_same(output, now)
    else:
        with begun(output, now):
            folder = _fill(output, request, inputs, given, watch)
            folder.finish(made_from={**now.summary(), "bad_documents": folder.state.bad})
    clear(output)
    return _result(output, inputs, watch, was_whole=is_whole)


def _require_same(output: Path, now: MadeFrom) -> None:
    before = read_made_from(output)
    if before is None:
        message = f"{output} holds tokens that were not made by prepare"
        raise ConfigurationError([error("prepare-output", "prepare.output", message, "name an empty or a new folder")])
    if findings := list(differences(before, now, output, is_whole=True)):
        raise ConfigurationError(findings)


def _fill(output: Path, request: PrepareRequest, inputs: Inputs, given: LoadedTokenizer | None, watch: Watch) -> ShardFolder:
    """Make what is missing in the folder."""
    tokenizer = _trained(request, inputs, watch) if given is None else _kept(given, output)
    folder = ShardFolder(output, _encoding(tokenizer, request.fields))
    watch.begins(folder.state)
    folder.fill(
        lambda place: inputs.chunks(place, request.fields),
        shard_tokens=request.shard_tokens,
        processes=request.processes,
        advanced=lambda progress: _advanced(progress, watch, request),
    )
    _require_documents(folder.state, request)
    return folder


def _advanced(progress: Progress, watch: Watch, request: PrepareRequest) -> None:
    watch.advanced(progress)
    if progress.num_bad >= max(_HOPELESS, progress.documents / 2) and request.max_bad_fraction < 0.5:
        raise ConfigurationError([_too_many(progress.num_bad, progress.documents, progress.bad, request)])


def _given_tokenizer(path: Path, scratch: Path) -> LoadedTokenizer:
    """A copy of the tokenizer, which says what ends a document."""
    folder = scratch / "tokenizer"
    folder.mkdir()
    tokenizer = copy_tokenizer(path, folder)
    if tokenizer.end_of_text is None:
        message = f"{path} names no token that ends a document"
        fix = 'put {"eos_token": "..."} into a tokenizer_config.json beside it'
        raise ConfigurationError([error("tokenizer-end", "data.tokenizer_path", message, fix)])
    return tokenizer


def _kept(given: LoadedTokenizer, output: Path) -> LoadedTokenizer:
    """Put the tokenizer beside the tokens, its own file last: once that is there, all are."""
    files = [] if (output / TOKENIZER).is_file() else [file for file in given.path.parent.iterdir() if file.is_file()]
    for file in sorted(files, key=lambda file: file.name == TOKENIZER):
        shutil.copyfile(file, output / f".{file.name}")
        (output / f".{file.name}").rename(output / file.name)
    return load_tokenizer(output)


def _trained(request: PrepareRequest, inputs: Inputs, watch: Watch) -> LoadedTokenizer:
    output = Path(request.output)
    if not (output / TOKENIZER).is_file():
        say(f"training a tokenizer of {request.vocab_size} entries on the text")
        scratch = output / f".{TOKENIZER}"
        chunks = watch.reads(inputs.chunks(Place(), request.fields))
        train_tokenizer(texts_of(chunks, request.fields), request.vocab_size, scratch)
        scratch.rename(output / TOKENIZER)
    return load_tokenizer(output)


def _encoding(tokenizer: LoadedTokenizer, fields: tuple[str, ...]) -> Encoding:
    assert tokenizer.end_of_text is not None
    return Encoding(
        tokenizer=tokenizer.path,
        vocab_size=tokenizer.vocab_size,
        end_of_document=tokenizer.end_of_text,
        dtype=token_dtype(tokenizer.vocab_size),
        fields=fields,
    )


def _require_documents(state: State, request: PrepareRequest) -> None:
    if state.num_bad > request.max_bad_fraction * state.read:
        raise ConfigurationError([_too_many(state.num_bad, state.read, state.bad, request)])
    if not state.shards:
        message = f"{', '.join(request.input)} holds no document"
        raise ConfigurationError([error("prepare-input", "prepare.input", message, "name files with text")])


def _too_many(num_bad: int, read: int, bad: Mapping[str, int], request: PrepareRequest) -> Finding:
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
    fix = "repair them and prepare into another folder"
    if num_bad < read:
        fix = f"{fix}, or leave them out and go on: prepare.max_bad_fraction={share:g}"
    if bad.get(Defect.missing_field) == num_bad:
        fix = "name the field that holds the text: prepare.text_field, or prepare.prompt_field and prepare.answer_field"
    return error("prepare-bad-documents", "prepare.max_bad_fraction", message, fix)


def _result(output: Path, inputs: Inputs, watch: Watch, *, was_whole: bool) -> dict[str, Any]:
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
