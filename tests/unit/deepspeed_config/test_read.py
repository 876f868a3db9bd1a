"""A DeepSpeed JSON is read as DeepSpeed reads it, and what cannot be read is refused with the place."""

from __future__ import annotations

import random

import pytest

from orchestrator.deepspeed_config.read import read_document
from orchestrator.errors import ConfigurationError

HJSON = """
{
  # comments, trailing commas and keys without quotes pass
  train_batch_size: 8
  // so do texts without quotes, to the end of their line
  zero_optimization: {stage: 2, reduce_bucket_size: 5e8,}
  /* and these */
  wall_clock_breakdown: false
}
"""


def read(tmp_path, content: bytes):
    file = tmp_path / "ds.json"
    file.write_bytes(content)
    return read_document(str(file))


def refused(tmp_path, content: bytes):
    with pytest.raises(ConfigurationError) as refusal:
        read(tmp_path, content)
    return refusal.value.findings


def test_hjson_passes_and_is_told_from_strict_json(tmp_path):
    document = read(tmp_path, HJSON.encode())
    assert document.values == {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 500_000_000},
        "wall_clock_breakdown": False,
    }
    assert not document.is_strict
    assert read(tmp_path, b'{"train_batch_size": 8}').is_strict


def test_every_duplicate_key_is_named_with_its_path(tmp_path):
    findings = refused(tmp_path, b'{"a": {"b": 1, "b": 2}, "a": {"c": {"d": 1, "d": 2}}, "e": [{"f": 1, "f": 1}]}')
    assert [finding.field for finding in findings] == ["a", "a.b", "a.c.d", "e[0].f"]
    assert {finding.rule for finding in findings} == {"json-duplicate-key"}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"[1, 2]", "a list"),
        (b"null", "null"),
        (b"5", "a number"),
        (b"just text", "text"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b"\xff\xfe{\x00}\x00", "byte-order mark"),
        (b'{\n"a": "\xe9"}', "line 2"),
        (b'{\n  "a": 1\n  "b" 2\n}', "line 3, column 7"),
        (b'{"a": 1,\n "b": tru}', "line 2, column 7"),
        (b'{"a": 1', "line 1"),
        (b'{"a": 1} {"b": 2}', "line 1, column 10"),
        (b'{"a": 1e999}', "infinity"),
        (b'{"a": /* x', "not closed"),
        (b'{"a":' * 5000, "nested too deeply"),
        (b"[" * 5000, "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        (b'{"a": "\\ud800"}', "ud800"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(tmp_path, content, part):
    (finding,) = refused(tmp_path, content)
    assert finding.field == "deepspeed_json"
    assert part in finding.message


def test_no_damage_to_a_file_raises_anything_else(tmp_path):
    state = random.Random(1)
    pieces = (b"", b"{", b"}", b'"', b"\\", b"/*", b"'''", b"\xff", b"\0", b"9", b"\n", b":")
    refused = 0
    for _ in range(3000):
        damaged = bytearray(HJSON.encode())
        for _ in range(state.randint(1, 4)):
            at = state.randrange(len(damaged))
            damaged[at : at + state.choice((0, 1, 1, 5))] = state.choice(pieces)
        try:
            read(tmp_path, bytes(damaged))
        except ConfigurationError as problem:
            refused += 1
            assert all(finding.message and finding.fix for finding in problem.findings)  # noqa: PT017
    assert 1000 < refused < 3000


def test_a_path_that_is_not_there_is_not_found_and_never_tried_as_base64(tmp_path):
    missing = tmp_path / "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="
    with pytest.raises(ConfigurationError) as refusal:
        read_document(str(missing))
    assert "file not found" in refusal.value.findings[0].message


@pytest.mark.parametrize("path", ["{folder}", "a\0b", "~nobody-of-that-name/x.json"])
def test_a_folder_and_impossible_paths_are_refused(tmp_path, path):
    with pytest.raises(ConfigurationError):
        read_document(path.format(folder=tmp_path))
