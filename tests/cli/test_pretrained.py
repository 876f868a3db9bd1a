"""A weight folder is checked before anything starts, and says by itself what the model looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from orchestrator.config.enums import AttentionImplementation
from orchestrator.planning.model_spec import model_spec_from_hf
from orchestrator.planning.parameter_names import named_parameters
from tests.cli.command_line import orchestrator

CONFIG = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SAME = tuple(f"model.{name}={CONFIG[name]}" for name in ("vocab_size", "hidden_size", "intermediate_size"))
SAME += ("model.num_hidden_layers=2", "model.num_attention_heads=4", "model.num_key_value_heads=2")
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
DATA = ("data=synthetic", "data.sequence_length=16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama in two files."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    spec = model_spec_from_hf(CONFIG, name="tiny", attention_implementation=AttentionImplementation.sdpa, dropout=0.0)
    tensors = {parameter.name: np.ones(parameter.shape, dtype=np.float32) for parameter in named_parameters(spec)}
    names = list(tensors)
    files = {FIRST: names[:-2], SECOND: names[-2:]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    places = {name: file for file, held in files.items() for name in held}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return folder


def test_the_folder_alone_gives_the_model(folder: Path, tmp_path: Path) -> None:
    ended = orchestrator("validate", "model=hf", f"model.pretrained={folder}", *DATA, "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything


def change(edit: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / SECOND)
        edit(tensors)
        save_file(tensors, folder / SECOND)

    return apply


def cut(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-1])


def reshape(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"] = np.ones(33, dtype=np.float32)


def forget_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def another_family(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "mistral"}))


def pickles(folder: Path) -> None:
    for name in (FIRST, SECOND, INDEX):
        (folder / name).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")


@pytest.mark.parametrize("verb", ["validate", "launch"])
@pytest.mark.parametrize(
    ("words", "damage", "told"),
    [
        (("model=hf",), lambda folder: (folder / SECOND).unlink(), ("model.norm.weight", SECOND, "No such file")),
        (("model=hf",), cut, ("model.norm.weight", SECOND, "cut short")),
        (("model=hf",), change(reshape), ("model.norm.weight", SECOND, "[33]", "[32]")),
        (("model=hf",), forget_config, ("config.json", "model.pretrained")),
        (("model=hf",), pickles, ("pytorch_model.bin", "save_pretrained")),
        (SAME, another_family, ("mistral", "llama")),
        ((*SAME, "model.hidden_size=64"), lambda _: None, ("hidden_size=32", "model.hidden_size is 64")),
    ],
    ids=["missing shard", "truncated shard", "wrong shape", "no config", "pickles", "another family", "another size"],
)
def test_a_folder_of_other_weights_is_refused(
    verb: str, words: tuple[str, ...], damage: Callable[[Path], None], told: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    damage(folder)
    own = (*words, f"model.pretrained={folder}", *DATA, "output=json")
    ended = orchestrator(verb, *own, cwd=tmp_path, watched=True)
    assert ended.code == 2, ended.everything
    assert "Traceback" not in ended.everything
    assert "STARTED A PROCESS" not in ended.stderr
    assert list(tmp_path.iterdir()) == [folder]
    errors = [finding for finding in ended.json["findings"] if finding["severity"] == "error"]
    assert {finding["field"] for finding in errors} == {"model.pretrained"}
    for part in told:
        assert part in errors[0]["message"] + errors[0]["fix"] + errors[0]["field"]


@pytest.mark.parametrize("verb", ["validate", "launch"])
def test_a_folder_that_is_not_there_is_named(verb: str, tmp_path: Path) -> None:
    ended = orchestrator(verb, "model=hf", "model.pretrained=nowhere", *DATA, cwd=tmp_path)
    assert ended.code == 2
    assert "model.pretrained" in ended.everything
    assert "nowhere" in ended.everything
