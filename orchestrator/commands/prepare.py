"""``prepare``: text as token files, made by a process that has tokenizers, and looked through again on request."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType
from rich.text import Text

from orchestrator.commands.result import INTERRUPTED, OK, REFUSED, RUN_FAILED, CommandResult
from orchestrator.config.data import PrepareConfig
from orchestrator.config.enums import TextFormat
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity, error
from orchestrator.launch.command import LaunchCommand
from orchestrator.launch.processes import Ended, meaning, supervise
from orchestrator.report import text
from orchestrator.run_dir import read_json
from orchestrator.tokens.request import RESULT, PrepareProgress, PrepareRequest
from orchestrator.tokens.store import TokenStore, open_tokens
from orchestrator.units import format_bytes, format_count, format_seconds

HELP = """Turn text into token files that data.source=tokens trains on: Megatron's .bin/.idx with a manifest and checksums.

Reads JSON lines and plain text (both also .gz or .zst), parquet and Hugging Face datasets saved on disk. The tokenizer is
data.tokenizer_path, a tokenizer.json or a Hugging Face folder; null trains a byte-level BPE on the text. Killed and started
again it goes on where it was; the files are the same to the byte. Bad lines are counted and named, and refused if there are
more than prepare.max_bad_fraction. Only prepare.*, data.tokenizer_path, data.tokenizer_vocab_size, data.file_suffixes, view
and output may be given.

Examples:
  orchestrator prepare prepare.input=[/data/books] prepare.output=/data/books_tokens data.tokenizer_path=/models/llama
  orchestrator prepare prepare.input=[a.jsonl.gz,b.parquet] prepare.text_field=content prepare.output=tokens
  orchestrator prepare prepare.input=[chats.jsonl] prepare.prompt_field=ask prepare.answer_field=answer prepare.output=chats
  orchestrator prepare prepare.output=/data/books_tokens prepare.check=true
  orchestrator launch data=tokens data.path=/data/books_tokens"""

WORKER = "orchestrator.worker.prepare"
LOG = "prepare.log"
SILENT_SECONDS = 1.0
"""A check that is over within this says only what it has found."""
_OWN_WORDS = ("prepare", "output", "command", "view", "experiment", "launcher.stop_seconds")
_OWN_DATA_WORDS = ("data.tokenizer_path", "data.tokenizer_vocab_size", "data.file_suffixes")
_SMALLEST_VOCABULARY = 257
"""The 256 bytes and the end of a document."""


class View(AbstractContextManager[Any], Protocol):
    """Shows what the process says, while it is entered."""

    def line(self, text: str) -> None:
        """Show a line of progress, or of anything else."""


def word_findings(overrides: Sequence[str]) -> list[Finding]:
    """Refuses words that change nothing here."""
    keys = [override.split("=", 1)[0].lstrip("+~").split("@")[0] for override in overrides]
    return [
        error("prepare-words", key, f"{key} has no effect on prepare", "leave it out; prepare --help lists what it takes")
        for key in keys
        if key not in (*_OWN_WORDS, *_OWN_DATA_WORDS) and key.split(".")[0] != "prepare"
    ]


def request_of(config: RunConfig) -> PrepareRequest:
    """What the process is to do; nothing has been read or written yet.

    Raises:
        ConfigurationError: with everything that is wrong with the options.
    """
    options = config.prepare
    findings = [*_path_findings(options), *_field_findings(options), *_size_findings(config)]
    if find_spec("tokenizers") is None:
        fix = "pip install 'orchestrator[data]'"
        findings.append(error("prepare-library", "prepare", "tokens are made by tokenizers, which is not installed", fix))
    if findings:
        raise ConfigurationError(findings)
    assert options.output is not None
    prompt_and_answer = (options.prompt_field, options.answer_field)
    return PrepareRequest(
        input=tuple(str(_absolute(path)) for path in options.input),
        output=str(_absolute(options.output)),
        format=options.format.value,
        text_endings=tuple(config.data.file_suffixes),
        fields=tuple(field for field in prompt_and_answer if field) or (options.text_field,),
        tokenizer=str(_absolute(config.data.tokenizer_path)) if config.data.tokenizer_path else None,
        vocab_size=config.data.tokenizer_vocab_size,
        processes=options.processes or len(os.sched_getaffinity(0)),
        shard_tokens=options.shard_tokens,
        max_bad_fraction=options.max_bad_fraction,
    )


def start(request: PrepareRequest, view: View, *, stop_seconds: float) -> CommandResult:
    """Make the tokens. The log stays where the result says if that fails.

    Raises:
        ConfigurationError: the input, the tokenizer or the output cannot be used, or too many documents are bad.
    """
    scratch = Path(tempfile.mkdtemp(prefix="orchestrator-prepare-"))
    request_file = scratch / "request.json"
    request.write(request_file)
    # the threads of the training of a tokenizer; those that make tokens are processes
    environment = {"RANK": "0", "RAYON_NUM_THREADS": str(request.processes)}
    command = LaunchCommand(
        argv=(sys.executable, "-m", WORKER, str(request_file)), environment=environment, working_directory=Path.cwd()
    )
    with view:
        outcome = supervise(command, log_file=scratch / LOG, echo=view.line, stop_seconds=stop_seconds)
    result = read_json(scratch / RESULT) if (scratch / RESULT).exists() else None
    if outcome.interrupted or result is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    if outcome.interrupted:
        again = "interrupted; the same command goes on where it was"
        return CommandResult(exit_code=INTERRUPTED, payload={"status": "interrupted"}, text=[Text(again)])
    if result is None:
        return _failed(outcome, scratch)
    if result["status"] == "refused":
        findings = [Finding(**{**finding, "severity": Severity(finding["severity"])}) for finding in result["findings"]]
        raise ConfigurationError(findings)
    return CommandResult(exit_code=OK, payload={"output": request.output, **result}, text=_report(request, result))


def check(config: RunConfig, view: View) -> CommandResult:
    """Read token files again, every byte, and compare them with their checksums; ``view`` shows how far that has come.

    Raises:
        ConfigurationError: there are none, or files are missing or cut.
    """
    path = config.prepare.output
    if path is None:
        raise ConfigurationError(
            [error("prepare-output", "prepare.output", "nothing is named to check", "set prepare.output=DIR")]
        )
    store = open_tokens(_absolute(path), field="prepare.output")
    with view:
        findings = store.verify(_advanced(store, view))
    payload = {
        "status": "damaged" if findings else "verified",
        "output": str(store.path),
        "tokens": store.num_tokens,
        "documents": store.num_documents,
        "shards": len(store.files),
        "findings": [finding.to_dict() for finding in findings],
    }
    amount = f"{format_count(store.num_tokens)} tokens in {format_count(store.num_documents)} documents"
    verdict = "damaged" if findings else "every file is as it was written" if store.manifest else "files and index agree"
    lines = [*text.findings_report(findings), Text(f"{store.path}: {amount}, {len(store.files)} shards: {verdict}")]
    return CommandResult(exit_code=REFUSED if findings else OK, payload=payload, text=lines)


def _advanced(store: TokenStore, view: View) -> Callable[[int], None]:
    """Takes the bytes of each file that has been read, and says of a check that lasts how far it has come."""
    started, done = time.monotonic(), 0

    def advanced(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        seconds = time.monotonic() - started
        if seconds >= SILENT_SECONDS:
            progress = PrepareProgress(
                stage="checking", bytes=done, num_bytes=store.num_bytes, seconds=seconds, fresh_bytes=done
            )
            view.line(progress.line())

    return advanced


def _path_findings(options: PrepareConfig) -> Iterator[Finding]:
    if not options.input:
        yield error("prepare-input", "prepare.input", "no text is named", "set prepare.input=[FILE_OR_FOLDER,...]")
    if options.output is None:
        yield error("prepare-output", "prepare.output", "no folder is named for the tokens", "set prepare.output=DIR")
        return
    output = _absolute(options.output)
    for path in map(_absolute, options.input):
        if output.resolve().is_relative_to(path.resolve()):
            message = f"{output} lies in the input {path}: its files would be read as text"
            yield error("prepare-output", "prepare.output", message, "name a folder outside of the input")


def _field_findings(options: PrepareConfig) -> Iterator[Finding]:
    prompt, answer = options.prompt_field, options.answer_field
    if (prompt is None) != (answer is None):
        given, missing = ("prompt_field", "answer_field") if answer is None else ("answer_field", "prompt_field")
        message = f"prepare.{given}={prompt or answer} stands alone"
        yield error("prepare-field", f"prepare.{missing}", message, f"set prepare.{missing} too, or neither")
    elif prompt is not None and prompt == answer:
        message = f"prompt and answer are both in {prompt!r}"
        yield error("prepare-field", "prepare.answer_field", message, "name two fields, or prepare.text_field alone")
    if prompt is not None and options.text_field != PrepareConfig().text_field:
        message = f"{options.text_field!r} is not read beside prepare.prompt_field={prompt}"
        yield error("prepare-field", "prepare.text_field", message, "name either the text, or the prompt and the answer")
    if prompt is not None and options.format is TextFormat.text:
        message = "plain text has no fields for a prompt and an answer"
        yield error("prepare-field", "prepare.prompt_field", message, "give them as jsonl, parquet or dataset")


def _size_findings(config: RunConfig) -> Iterator[Finding]:
    options = config.prepare
    for name, value in (("processes", options.processes), ("shard_tokens", options.shard_tokens)):
        if value is not None and value < 1:
            yield error("prepare-size", f"prepare.{name}", f"{name}={value} is below 1", f"set prepare.{name} to 1 or more")
    if not 0 <= options.max_bad_fraction <= 1:
        message = f"max_bad_fraction={options.max_bad_fraction:g} is no share of the documents"
        yield error("prepare-size", "prepare.max_bad_fraction", message, "choose from 0 to 1")
    size = config.data.tokenizer_vocab_size
    if config.data.tokenizer_path is None and size < _SMALLEST_VOCABULARY:
        message = f"{size} entries are fewer than the 256 bytes and the end of a document"
        yield error("prepare-size", "data.tokenizer_vocab_size", message, f"set it to {_SMALLEST_VOCABULARY} or more")


def _absolute(path: str) -> Path:
    # Path's own expanduser raises for unknown users, and its absolute() keeps ".."
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111


def _failed(outcome: Ended, scratch: Path) -> CommandResult:
    failures = [read_json(path) for path in scratch.glob("failure_rank_*.json")]
    reason = failures[0]["error"] if failures else meaning(outcome.exit_code)
    log = scratch / LOG
    payload = {"status": "failed", "reason": reason, "exit_code": outcome.exit_code, "log": str(log)}
    lines = [
        Text.assemble(("the tokens were not made: ", "bold red"), reason),
        Text("the same command goes on with what is complete"),
        Text(f"log: {log}"),
    ]
    return CommandResult(exit_code=RUN_FAILED, payload=payload, text=lines)


def _report(request: PrepareRequest, result: dict[str, Any]) -> list[RenderableType]:
    amount = f"{format_count(result['tokens'])} tokens in {format_count(result['documents'])} documents"
    origin = f"{result['input_files']} files, {format_bytes(result['input_bytes'])}"
    kind = f"{result['shards']} shards of {result['dtype']}, vocabulary {result['vocab_size']}"
    lines: list[RenderableType] = [Text(f"{request.output}: {amount}, {kind}, of {origin}")]
    if result["bad_documents"]:
        lines.append(Text(f"{result['bad_documents']} bad documents were left out: {request.output}/bad_documents.jsonl"))
    if result["was_complete"]:
        lines.append(Text("it was complete already; nothing was made"))
    elif result["tokens_per_second"]:
        rate = format_count(result["tokens_per_second"])
        lines.append(Text(f"made in {format_seconds(result['seconds'])}, {rate} tokens/s with {request.processes} processes"))
    lines.append(Text(f"train on it with data=tokens data.path={request.output}"))
    return lines
