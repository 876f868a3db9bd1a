"""Which checkpoints a run can go on from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.checkpoints import catalogue
from orchestrator.checkpoints.catalogue import (
    Manifest,
    best,
    complete_checkpoints,
    newest,
    record_held_out_loss,
    remove_old,
    resume_findings,
    tag_of,
    unfinished_bytes,
    write_manifest,
)
from orchestrator.findings import Severity

LAYOUT = {"data_parallel_size": 2, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "train_batch_size": 8}
HF_CONFIG = {"model_type": "llama", "rope_theta": 10000.0, "attention_dropout": 0.0}
MANIFEST = Manifest(
    step=5,
    consumed_samples=40,
    layout=LAYOUT,
    boundaries=[0, 6],
    fixed_options={"training.freeze": [], "offload.optimizer_device": "none"},
    zero_stage=1,
    dtype="bf16",
    model_name="tiny",
    num_parameters=1000,
    hf_config=HF_CONFIG,
    created=1.0,
)


def save(directory, step: int, *, complete: bool = True, loss: float | None = None):
    tag_dir = directory / tag_of(step)
    tag_dir.mkdir(parents=True)
    (tag_dir / "weights.pt").write_bytes(b"weights")
    if complete:
        write_manifest(tag_dir, replace(MANIFEST, step=step, consumed_samples=8 * step, held_out_loss=loss))
    return tag_dir


def resume(**changes) -> list[tuple[str, Severity]]:
    asked = {"layout": LAYOUT, "zero_stage": 1, "dtype": "bf16", "model_name": "tiny", "num_parameters": 1000}
    asked |= {"max_steps": 100, "hf_config": HF_CONFIG, "boundaries": [0, 6], "fixed_options": MANIFEST.fixed_options}
    return [(finding.field, finding.severity) for finding in resume_findings(MANIFEST, **{**asked, **changes})]


def test_a_file_in_a_sub_folder_is_part_of_the_checkpoint(tmp_path):
    swapped = save(tmp_path, 5, complete=False) / "offloaded_tensors" / "rank0" / "weights.swp"
    swapped.parent.mkdir(parents=True)
    swapped.write_bytes(b"weights")
    write_manifest(swapped.parents[2], MANIFEST)
    assert newest(tmp_path) is not None
    swapped.write_bytes(b"w")
    assert newest(tmp_path) is None


def test_another_cut_of_the_layers_cannot_go_on():
    assert resume(boundaries=[0, 3, 6]) == [("parallelism.partition_method", Severity.error)]


def test_options_that_the_files_depend_on_stay():
    changed = {"training.freeze": ["embed"], "offload.optimizer_device": "nvme"}
    assert resume(fixed_options=changed) == [(name, Severity.error) for name in changed]


def test_checkpoints_are_ordered_by_their_step_not_by_their_name(tmp_path):
    for step in (100, 5, 20):
        save(tmp_path, step)
    assert [checkpoint.manifest.step for checkpoint in complete_checkpoints(tmp_path)] == [5, 20, 100]


def test_a_save_that_never_ended_is_not_a_checkpoint(tmp_path):
    save(tmp_path, 5)
    save(tmp_path, 10, complete=False)
    (save(tmp_path, 15, complete=False) / "manifest.json").write_text('{"step": 15, "consu')
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.tag == "global_step5"
    assert checkpoint.manifest == MANIFEST


def test_a_run_that_saved_nothing_has_no_newest(tmp_path):
    assert newest(tmp_path) is None
    assert newest(tmp_path / "missing") is None


def test_retention_keeps_the_newest_and_leaves_unfinished_saves_alone(tmp_path):
    for step in (5, 10, 15):
        save(tmp_path, step)
    save(tmp_path, 20, complete=False)
    assert remove_old(tmp_path, keep=2) == ["global_step5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step10", "global_step15", "global_step20"]


def tags(directory) -> list[str]:
    return [checkpoint.tag for checkpoint in complete_checkpoints(directory)]


def test_the_best_stays_beside_the_newest_until_a_better_one_is_there(tmp_path):
    for step, loss in ((5, 2.0), (10, 1.5), (15, 1.7), (20, None), (25, 1.6)):
        save(tmp_path, step, loss=loss)
        remove_old(tmp_path, keep=1, keep_best=True)
    assert tags(tmp_path) == ["global_step10", "global_step25"]
    assert (tmp_path / "best").read_text() == "global_step10\n"
    record_held_out_loss(tmp_path / "global_step25", 1.4)
    assert remove_old(tmp_path, keep=1, keep_best=True) == ["global_step10"]
    assert best(tmp_path) == newest(tmp_path)
    assert (tmp_path / "best").read_text() == "global_step25\n"


def test_a_measured_checkpoint_is_as_complete_as_before(tmp_path):
    tag_dir = save(tmp_path, 5)
    record_held_out_loss(tag_dir, 1.25)
    assert best(tmp_path).manifest == replace(MANIFEST, held_out_loss=1.25)
    (tag_dir / "weights.pt").unlink()
    assert best(tmp_path) is None


def test_a_checkpoint_from_before_losses_were_noted_is_complete_and_never_the_best(tmp_path):
    path = save(tmp_path, 5) / "manifest.json"
    values = json.loads(path.read_text())
    del values["held_out_loss"]
    path.write_text(json.dumps(values))
    assert newest(tmp_path).manifest == MANIFEST
    assert best(tmp_path) is None


def test_an_old_checkpoint_that_somebody_reads_goes_in_parts(tmp_path, monkeypatch):
    """On NFS a removed file that is open stays in its folder under another name, and the folder cannot be removed."""

    def kept_open(folder, **_options):
        for path in folder.iterdir():
            path.rename(folder / ".nfs0001")

    for step in (5, 10):
        save(tmp_path, step)
    with monkeypatch.context() as patched:
        patched.setattr(catalogue.shutil, "rmtree", kept_open)
        assert remove_old(tmp_path, keep=1) == ["global_step5"]
    assert tags(tmp_path) == ["global_step10"]
    save(tmp_path, 15)
    remove_old(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step15"]


def test_what_is_being_saved_is_measured_and_what_is_complete_is_not(tmp_path):
    assert unfinished_bytes(tmp_path) == 0
    save(tmp_path, 5)
    before = unfinished_bytes(tmp_path)
    save(tmp_path, 10, complete=False)
    assert unfinished_bytes(tmp_path) > before == 0


def test_keeping_all_removes_nothing(tmp_path):
    for step in (5, 10):
        save(tmp_path, step)
    assert remove_old(tmp_path, keep=0) == []
    assert len(complete_checkpoints(tmp_path)) == 2


def test_the_same_run_resumes_without_a_word():
    assert resume() == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layout": {**LAYOUT, "data_parallel_size": 4}}, "parallelism.data_parallel_size"),
        ({"layout": {**LAYOUT, "tensor_parallel_size": 2}}, "parallelism.tensor_parallel_size"),
        ({"zero_stage": 3}, "zero.stage"),
        ({"dtype": "fp16"}, "precision.dtype"),
        ({"num_parameters": 1001}, "model.name"),
        ({"hf_config": {**HF_CONFIG, "rope_theta": 500000.0}}, "model.name"),
        ({"hf_config": {**HF_CONFIG, "sliding_window": 64}}, "model.name"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(changes, field):
    assert resume(**changes) == [(field, Severity.error)]


def test_another_dropout_is_the_same_model():
    assert resume(hf_config={**HF_CONFIG, "attention_dropout": 0.1}) == []


def test_all_that_differs_is_reported_at_once():
    fields = [field for field, _ in resume(zero_stage=0, dtype="fp32", num_parameters=2)]
    assert fields == ["model.name", "zero.stage", "precision.dtype"]


def test_another_name_or_batch_size_or_nothing_left_to_do_is_allowed_and_said():
    found = resume(model_name="other", layout={**LAYOUT, "train_batch_size": 16}, max_steps=5)
    assert found == [
        ("model.name", Severity.warning),
        ("training.train_batch_size", Severity.warning),
        ("training.max_steps", Severity.info),
    ]


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_checkpoint_that_lost_a_file_is_none(tmp_path, damage: str) -> None:
    save(tmp_path, 5)
    weights = save(tmp_path, 10) / "weights.pt"
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(b"w")
    assert newest(tmp_path).tag == "global_step5"
