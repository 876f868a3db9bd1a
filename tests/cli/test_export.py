"""``orchestrator export``: a run directory in, a folder that Hugging Face loads out; nothing overwritten, nothing half done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator
from tests.distributed.attempts import trained
from tests.distributed.ranks import run_ranks

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 400
WORDS = (
    "data=text",
    "data.tokenizer_vocab_size=280",
    "model.vocab_size=300",
    "training.max_steps=2",
    "checkpoint.save_every=1",
    "checkpoint.save_at_end=true",
    "checkpoint.keep=0",
    "precision=bf16",
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints and a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT)
    trained(folder / "run", *WORDS, f"data.path={folder / 'text.txt'}", world_size=2)
    return folder / "run"


def test_the_folder_loads_with_its_tokenizer_and_generates(run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "hf"
    ended = orchestrator("export", f"run_dir={run_dir}", f"export.output={output}", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    result = ended.json
    assert (result["status"], result["step"], result["dtype"]) == ("completed", 2, "bf16")
    assert "export: " in ended.stderr
    assert result["files"] == ["model.safetensors"]
    (said,) = run_ranks("tests.cli.hf_folder:use", output, world_size=1, directory=tmp_path / "ranks")
    assert said["text"] == "the quick brown fox"
    assert said["end_of_text"] == "<|endoftext|>"
    assert said["dtype"] == "torch.bfloat16"
    assert said["generated"] == 8
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_older_checkpoint_can_be_asked_for_and_another_format(run_dir: Path, tmp_path: Path) -> None:
    words = ("export.tag=global_step1", "export.dtype=fp32", "export.output=hf")
    ended = orchestrator("export", f"run_dir={run_dir}", *words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert "global_step1" in ended.stdout
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [
        (("export.tag=global_step9",), "export.tag", "global_step1, global_step2"),
        (("export.output={taken}",), "export.output", "overwritten"),
        (("export.output={taken}/file/deeper",), "export.output", "not a folder"),
        (("export.max_shard_gb=0",), "export.max_shard_gb", "above 0"),
        (("zero.stage=3",), "zero.stage", "run_dir"),
        (("model=gpt2",), "model", "run_dir"),
        (("export.dtype=int8",), "export.dtype", "bf16"),
        (("export.tga=x",), "export.tga", "export.tag"),
        (("run_dir={taken}",), "run_dir", "holds no run"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    run_dir: Path, words: tuple[str, ...], field: str, told: str, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("mine")
    own = [word.format(taken=taken) for word in words]
    ended = orchestrator("export", f"run_dir={run_dir}", *own, "output=json", cwd=tmp_path, watched=True)
    assert ended.code == 2, ended.everything
    assert "STARTED A PROCESS" not in ended.stderr
    errors = {finding["field"]: finding for finding in ended.json["findings"]}
    assert told in errors[field]["message"] + errors[field]["fix"]
    assert (taken / "file").read_text() == "mine"
    assert not (run_dir / "export").exists()


def test_a_checkpoint_that_lost_a_file_is_none(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    (copy / "checkpoints").mkdir(parents=True)
    (copy / "request").symlink_to(run_dir / "request")
    for tag in ("global_step1", "global_step2"):
        folder = copy / "checkpoints" / tag
        folder.mkdir()
        for path in (run_dir / "checkpoints" / tag).iterdir():
            (folder / path.name).symlink_to(path)
    (copy / "checkpoints" / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    ended = orchestrator("export", f"run_dir={copy}", "export.tag=global_step2", cwd=tmp_path)
    assert ended.code == 2
    assert "not complete" in ended.stderr
    assert "global_step1" in ended.stderr


def test_a_damaged_checkpoint_fails_with_its_reason_and_leaves_no_folder(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    folder = copy / "checkpoints" / "global_step2"
    folder.mkdir(parents=True)
    (copy / "request").symlink_to(run_dir / "request")
    for path in (run_dir / "checkpoints" / "global_step2").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    states = folder / "mp_rank_00_model_states.pt"
    states.write_bytes(b"\x00" * states.stat().st_size)
    ended = orchestrator("export", f"run_dir={copy}", "output=json", cwd=tmp_path)
    assert ended.code == 4, ended.everything
    assert ended.json["reason"]
    assert Path(ended.json["log"]).is_file()
    assert sorted(path.name for path in copy.iterdir()) == ["checkpoints", "request"]
