"""``prepare`` is broken off, at every moment that matters and at any other, and started again: the files are the same."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.config.enums import TextFormat
from orchestrator.errors import ConfigurationError
from orchestrator.tokens.manifest import Shard
from orchestrator.tokens.request import PrepareRequest
from orchestrator.worker.data import chunks, output, plain_files
from orchestrator.worker.data.chunks import Place
from orchestrator.worker.data.inputs import find_inputs
from orchestrator.worker.data.shards import Progress, State
from orchestrator.worker.data.watch import Watch
from tests.unit.refusals import refusal
from tests.unit.worker.data.preparing import (
    WORDS,
    content,
    documents_in,
    request_of,
    run,
    sentences,
    write_lines,
    write_tokenizer,
)

KILLS = 3


class Killed(BaseException):
    """What nobody catches."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def written(folder: Path) -> list[Path]:
    """Lines and text with something bad in between, in files of several chunks."""
    texts = sentences(60)
    lines = [{"text": text} for text in texts]
    first = write_lines(folder / "a.jsonl", [*lines[:20], "broken", *lines[20:40], "broken too"])
    (folder / "b.txt").write_text("\n".join(texts))
    (folder / "c.txt").write_bytes(b"\xff")
    return [first, folder / "b.txt", folder / "c.txt", write_lines(folder / "d.jsonl", lines[40:])]


STEPS = {"rename": Path, "mkdir": Path, "fsync": os, "rmtree": shutil}
"""What changes a folder, and where Python has it."""


@pytest.mark.parametrize(
    ("operation", "tokenizer"),
    [("rename", "given"), ("rename", "trained"), ("fsync", "given"), ("mkdir", "given"), ("rmtree", "given")],
)
def test_whatever_step_is_the_last_the_next_start_ends_the_work(folder, monkeypatch, operation, tokenizer):
    """The process dies at the first step that changes the folder, at the second, ... and is started again after each."""
    for module in (chunks, plain_files):
        monkeypatch.setattr(module, "CHUNK_BYTES", 512)
    inputs = written(folder)
    options = {"shard_tokens": 150, "max_bad_fraction": 0.2, **({"tokenizer": None} if tokenizer == "trained" else {})}
    run(folder, inputs, **options)
    expected = content(folder / "tokens")
    assert len([name for name in expected if name.endswith(".bin")]) > 2
    real = getattr(STEPS[operation], operation)
    for death in range(1, 100):
        shutil.rmtree(folder / "tokens")
        calls = 0

        def step(*arguments, death=death, **options):
            nonlocal calls
            calls += "tokens" in str(arguments[0]) or operation == "fsync"
            if calls == death:
                raise Killed
            return real(*arguments, **options)

        monkeypatch.setattr(STEPS[operation], operation, step)
        try:
            run(folder, inputs, **options)
            break
        except Killed:
            monkeypatch.setattr(STEPS[operation], operation, real)
            run(folder, inputs, **options)
            assert content(folder / "tokens") == expected
    assert death > {"mkdir": 1, "rmtree": 1}.get(operation, 10)


def test_killed_processes_leave_what_the_next_start_goes_on_with(folder):
    generator = random.Random(1)
    line = " ".join(generator.choices(WORDS, k=2000))
    path = write_lines(folder / "a.jsonl", [{"text": line, "number": number} for number in range(600)])
    options = {"shard_tokens": 100_000, "processes": 2}
    whole = request_of(folder, [path], **options, output=str(folder / "whole"))
    assert started(folder, whole).wait(timeout=300) == 0
    request = request_of(folder, [path], **options)
    kills = 0
    for _ in range(KILLS):
        before = len(shards(folder / "tokens"))
        process = started(folder, request)
        while process.poll() is None and len(shards(folder / "tokens")) <= before:
            time.sleep(0.002)
        time.sleep(generator.uniform(0, 0.05))
        kills += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert kills >= 1
    assert started(folder, request).wait(timeout=300) == 0
    assert content(folder / "tokens") == content(folder / "whole")


def shards(folder: Path) -> list[Path]:
    return list(folder.glob("shard-*.idx"))


def started(folder: Path, request: PrepareRequest) -> subprocess.Popen[bytes]:
    """The process of ``prepare`` on a request, with those it starts in a group of its own."""
    scratch = folder / f"scratch-{len(list(folder.glob('scratch-*')))}"
    scratch.mkdir()
    request.write(scratch / "request.json")
    words = [sys.executable, "-m", "orchestrator.worker.prepare", str(scratch / "request.json")]
    return subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)


CHANGES = {
    "tokenizer": ({"tokenizer": None}, "data.tokenizer"),
    "shards": ({"shard_tokens": 7}, "prepare.shard_tokens"),
    "field": ({"fields": ("body",)}, "prepare.text_field"),
}


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("change", [*CHANGES, "content", "new file", "gone", "order"])
def test_a_folder_made_from_something_else_is_refused(folder, change, is_whole):
    lines = [{"text": "word1", "body": "word2"}]
    first = write_lines(folder / "a.jsonl", lines if is_whole else [*lines, "broken"])
    second = write_lines(folder / "b.jsonl", lines)
    try:
        run(folder, [first, second])
    except ConfigurationError:
        assert not is_whole
    before = content(folder / "tokens")
    options, field = CHANGES.get(change, ({}, "prepare.input"))
    inputs = [first, second]
    if change == "content":
        write_lines(second, [{"text": "word3"}])
    elif change == "new file":
        inputs.append(write_lines(folder / "c.jsonl", lines))
    elif change == "gone":
        inputs.remove(second)
    elif change == "order":
        inputs.reverse()
    with pytest.raises(ConfigurationError) as caught:
        run(folder, inputs, **options)
    assert all(finding.field.startswith(field) and finding.fix for finding in caught.value.findings)
    assert content(folder / "tokens") == before


def test_tokens_with_another_end_of_documents_are_not_taken_for_done(folder):
    own = write_tokenizer(folder / "own" / "tokenizer.json").parent
    path = write_lines(folder / "a.jsonl", [{"text": "word1"}])
    run(folder, [path], tokenizer=str(own))
    (own / "tokenizer_config.json").write_text('{"eos_token": "word7"}')
    finding = refusal(lambda: run(folder, [path], tokenizer=str(own)))
    assert (finding.rule, finding.field) == ("prepare-changed", "data.tokenizer_path")


def test_the_time_left_counts_from_where_a_file_is_gone_on_with(folder):
    path = write_lines(folder / "a.jsonl", [{"text": "word1"}] * 4)
    inputs = find_inputs([path], TextFormat.auto, text_endings=())
    shard = Shard(name="shard-00000", tokens=5, documents=2, sha256="", index_sha256="")
    watch = Watch(inputs)
    watch.begins(State(shards=(shard,), place=Place(offset=40)))
    for disk_bytes in (60, 80):
        watch.advanced(Progress(file=0, disk_bytes=disk_bytes, tokens=8, documents=3, bad={}))
    assert (watch.now.bytes, watch.now.fresh_bytes, watch.now.fresh_tokens) == (72, 12, 3)


def test_a_folder_without_a_complete_file_may_be_begun_with_something_else(folder):
    path = write_lines(folder / "a.jsonl", [{"body": "word1"}])
    with pytest.raises(ConfigurationError):
        run(folder, [path], max_bad_fraction=1.0, tokenizer=None)
    run(folder, [path], fields=("body",))
    assert documents_in(folder / "tokens") == [[3, 0]]
    assert not (folder / "tokens" / "bad_documents.jsonl").exists()


def test_two_starts_at_once_do_not_write_to_one_folder(folder, monkeypatch):
    inputs = written(folder)
    monkeypatch.setattr(output, "LINGER_SECONDS", 0.2)
    real = os.fsync

    def meanwhile(file):
        monkeypatch.setattr(os, "fsync", real)
        with pytest.raises(ConfigurationError, match="another prepare"):
            run(folder, inputs, max_bad_fraction=1.0)
        real(file)

    calls = 0

    def second_call(file):
        nonlocal calls
        calls += 1
        (meanwhile if calls == 2 else real)(file)

    monkeypatch.setattr(os, "fsync", second_call)
    run(folder, inputs, max_bad_fraction=1.0)
    assert calls >= 2


def test_what_is_left_of_a_killed_start_is_waited_for(folder):
    lock = folder / "tokens" / "preparing" / "lock"
    lock.parent.mkdir(parents=True)
    held = lock.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    ending = threading.Timer(0.5, held.close)
    ending.start()
    run(folder, written(folder), max_bad_fraction=1.0)
    ending.join()
    assert (folder / "tokens" / "tokens.json").exists()
