"""An export that does not come to its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints.catalogue import Manifest, write_manifest
from orchestrator.checkpoints.export_request import ExportRequest
from orchestrator.worker import export

MANIFEST = Manifest(
    step=5,
    consumed_samples=40,
    layout={"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
    boundaries=[],
    zero_stage=1,
    dtype="bf16",
    model_name="tiny",
    num_parameters=1,
    fixed_options={},
    hf_config={},
    created=0.0,
)


@pytest.fixture
def request_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The request for an export of a complete checkpoint, in a folder of its own."""
    tag_dir, scratch = tmp_path / "checkpoints" / "global_step5", tmp_path / "scratch"
    for folder in (tag_dir, scratch):
        folder.mkdir(parents=True)
    (tag_dir / "weights.pt").write_bytes(b"weights")
    write_manifest(tag_dir, MANIFEST)
    output = str(tmp_path / "models" / "books")
    request = ExportRequest(checkpoint=str(tag_dir), output=output, dtype="bf16", max_shard_bytes=1, tokenizer=None)
    request.write(scratch / "request.json")
    monkeypatch.setattr(export, "model_spec_from_hf", lambda *_, **__: None)
    before = signal.getsignal(signal.SIGTERM)
    yield scratch / "request.json"
    signal.signal(signal.SIGTERM, before)


def test_an_export_that_is_asked_to_end_takes_its_folder_away(
    request_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_request: ExportRequest, _manifest: Manifest, _spec: Any, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(export, "_write", ended)
    assert export.main([str(request_file)]) == 1
    assert list((tmp_path / "models").iterdir()) == []


def test_a_checkpoint_that_goes_while_it_is_read_is_said_to_have_gone(
    request_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on, and keeps only the newest."""

    def late(request: ExportRequest, _manifest: Manifest, _spec: Any, _folder: Path) -> None:
        (Path(request.checkpoint) / "weights.pt").unlink()
        (Path(request.checkpoint) / "weights.pt").read_bytes()

    monkeypatch.setattr(export, "_write", late)
    assert export.main([str(request_file)]) == 1
    failure = json.loads((request_file.parent / "failure_rank_0.json").read_text())
    assert "is no complete checkpoint any more" in failure["error"]
    assert list((tmp_path / "models").iterdir()) == []
