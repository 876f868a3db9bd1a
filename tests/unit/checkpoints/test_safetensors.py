"""A weight folder is checked by its headers: every damaged file and every wrong tensor is named, nothing else is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.checkpoints.safetensors import INDEX, WEIGHTS, read_weights, weight_findings
from orchestrator.findings import Finding, Severity

EXPECTED = [
    ("model.embed_tokens.weight", (8, 4)),
    ("model.layers.0.mlp.up_proj.weight", (6, 4)),
    ("model.norm.weight", (4,)),
    ("lm_head.weight", (8, 4)),
]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.ones(shape) for name, shape in EXPECTED}


def sharded(folder: Path) -> None:
    """Two tensors in each of two files."""
    names = [name for name, _ in EXPECTED]
    held = {FIRST: names[:2], SECOND: names[2:]}
    for file, own in held.items():
        save_file({name: tensors()[name] for name in own}, folder / file)
    weight_map = {name: file for file, own in held.items() for name in own}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def check(folder: Path) -> list[Finding]:
    return weight_findings(folder, EXPECTED, family="llama")


def test_a_complete_folder_has_nothing_to_say(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / WEIGHTS, metadata={"format": "pt"})
    assert check(tmp_path) == []


def test_a_complete_folder_in_shards_has_nothing_to_say(tmp_path: Path) -> None:
    sharded(tmp_path)
    assert check(tmp_path) == []


def test_the_header_gives_dtype_shape_and_file(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16), "empty": torch.zeros(0)}, tmp_path / WEIGHTS)
    stored, findings = read_weights(tmp_path)
    assert findings == []
    assert stored is not None
    assert (stored.tensors["a"].dtype, stored.tensors["a"].shape, stored.tensors["a"].file) == (
        "BF16",
        (2, 3),
        tmp_path / WEIGHTS,
    )


def test_a_folder_of_the_bare_decoder_leaves_the_first_part_of_the_names_out(tmp_path: Path) -> None:
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors().items()}, tmp_path / WEIGHTS)
    assert check(tmp_path) == []


def remove_second(folder: Path) -> None:
    (folder / SECOND).unlink()


def cut_second(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-5])


def lengthen_second(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes() + b"more")


def empty_second(folder: Path) -> None:
    (folder / SECOND).write_bytes(b"")


def garble_second(folder: Path) -> None:
    content = bytearray((folder / SECOND).read_bytes())
    content[8:12] = b"\xff\x00{["
    (folder / SECOND).write_bytes(bytes(content))


def pointer_second(folder: Path) -> None:
    (folder / SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (remove_second, "No such file"),
        (cut_second, "cut short"),
        (lengthen_second, "more bytes"),
        (empty_second, "0 bytes"),
        (garble_second, "not JSON"),
        (pointer_second, "no safetensors file"),
    ],
)
def test_a_damaged_shard_is_one_error_that_names_file_and_tensor(
    damage: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    sharded(tmp_path)
    damage(tmp_path)
    (finding,) = check(tmp_path)
    assert finding.severity is Severity.error
    assert finding.field == "model.pretrained"
    assert str(tmp_path / SECOND) in finding.message
    assert told in finding.message
    assert "model.norm.weight" in finding.message


def test_every_wrong_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    wrong = tensors()
    wrong["model.layers.0.mlp.up_proj.weight"] = torch.ones(6, 5)
    wrong["lm_head.weight"] = torch.ones(8, 4, dtype=torch.int8)
    del wrong["model.norm.weight"]
    save_file(wrong, tmp_path / WEIGHTS)
    messages = {finding.rule: finding.message for finding in check(tmp_path)}
    file = str(tmp_path / WEIGHTS)
    assert file in messages["pretrained-shape"]
    assert "model.layers.0.mlp.up_proj.weight" in messages["pretrained-shape"]
    assert "[6, 5]" in messages["pretrained-shape"]
    assert "[6, 4]" in messages["pretrained-shape"]
    assert "lm_head.weight" in messages["pretrained-dtype"]
    assert "I8" in messages["pretrained-dtype"]
    assert "model.norm.weight" in messages["pretrained-missing"]
    assert len(messages) == 3


def test_a_tensor_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"lm_head.weight": torch.ones(8, 4)}, tmp_path / SECOND)
    (finding,) = check(tmp_path)
    assert "model.norm.weight" in finding.message
    assert SECOND in finding.message


def test_another_family_is_one_error(tmp_path: Path) -> None:
    save_file({"transformer.wte.weight": torch.ones(8, 4), "transformer.ln_f.weight": torch.ones(4)}, tmp_path / WEIGHTS)
    (finding,) = check(tmp_path)
    assert finding.rule == "pretrained-family"
    assert "transformer" in finding.message


def test_leftovers_are_told_and_known_ones_are_not(tmp_path: Path) -> None:
    extra = {"model.vision.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file({**tensors(), **extra}, tmp_path / WEIGHTS)
    (finding,) = check(tmp_path)
    assert finding.severity is Severity.info
    assert "model.vision.weight" in finding.message
    assert "inv_freq" not in finding.message


def test_a_tied_model_may_carry_a_copy_of_its_embedding(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / WEIGHTS)
    assert weight_findings(tmp_path, EXPECTED[:-1], family="llama") == []


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "neither"),
        ({"pytorch_model.bin": b"x"}, "save_pretrained"),
        ({INDEX: b"{}"}, "weight_map"),
        ({INDEX: b"\xff"}, "weight_map"),
        ({INDEX: b'{"weight_map": {"a": "../elsewhere.safetensors"}}'}, "elsewhere"),
    ],
)
def test_a_folder_without_weights_says_what_it_lacks(files: dict[str, bytes], told: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (finding,) = check(tmp_path)
    assert told in finding.message + finding.fix


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    (finding,) = check(tmp_path / "nowhere")
    assert "nowhere" in finding.message
