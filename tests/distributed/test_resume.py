"""A training that is killed and resumed is the training that was never killed."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from orchestrator.checkpoints.catalogue import complete_checkpoints, newest
from orchestrator.run_dir import Attempt, checkpoint_dir, read_json
from tests.distributed.attempts import WORKER, entries, failure, new_attempt, trained
from tests.distributed.ranks import RankFailedError, run_ranks, start_ranks

OPTIONS = (
    "precision=bf16",
    "training.max_steps=20",
    "training.train_micro_batch_size_per_gpu=1",
    "checkpoint.save_every=5",
    "checkpoint.save_at_end=true",
    "checkpoint.keep=0",
    # Dropout makes the random states count.
    "model.family=gpt2",
    "model.num_key_value_heads=null",
    "model.dropout=0.1",
)
TP2 = "parallelism.tensor_parallel_size=2"
PP2 = "parallelism.pipeline_parallel_size=2"
LAYOUTS = {
    "zero 1, dp 2": (2, ("zero=stage1",)),
    "zero 3, dp 2": (2, ("zero=stage3",)),
    "zero 1, tp 2, pp 2": (4, ("zero=stage1", TP2, PP2)),
    "zero 1, tp 2, pp 2, sequence parallel": (4, ("zero=stage1", TP2, PP2, "parallelism.sequence_parallel=true")),
    "zero 1, pp 2, dual_pipe_v": (
        2,
        ("zero=stage1", PP2, "parallelism.schedule=dual_pipe_v", "model.num_hidden_layers=4"),
    ),
}


def kill_after_checkpoint(attempt: Attempt, step: int, *, world_size: int) -> None:
    function = "tests.distributed.stopping:run_slowly_at_the_end"
    ranks = start_ranks(function, attempt.path, step, world_size=world_size, directory=attempt.path / "ranks")
    deadline = time.monotonic() + 240
    while (checkpoint := newest(checkpoint_dir(attempt.run_dir))) is None or checkpoint.manifest.step < step:
        assert time.monotonic() < deadline, ranks.output(0)
        time.sleep(0.005)
    ranks.kill()
    assert attempt.result is None, "the kill came too late to test anything"


def final_tensors(run_dir: Path) -> dict[str, str]:
    function = "tests.distributed.checkpoint_tensors:tensor_digests"
    tag_dir = checkpoint_dir(run_dir) / "global_step20"
    (digests,) = run_ranks(function, tag_dir, world_size=1, directory=run_dir / "reader")
    return digests


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_steps_a_kill_and_ten_steps_are_twenty_steps_bit_for_bit(tmp_path, report, layout):
    world_size, words = LAYOUTS[layout]
    options = (*OPTIONS, *words)
    uninterrupted = trained(tmp_path / "whole", *options, world_size=world_size)
    killed = new_attempt(tmp_path / "killed", options, world_size=world_size)
    kill_after_checkpoint(killed, step=10, world_size=world_size)
    checkpoint = newest(checkpoint_dir(killed.run_dir))
    assert checkpoint is not None
    resumed = trained(tmp_path / "killed", *options, world_size=world_size, resume_tag=checkpoint.tag)

    def values(attempt: Attempt) -> dict[int, tuple[float, float, float]]:
        return {entry["step"]: (entry["loss"], entry["grad_norm"], entry["lr"]) for entry in entries(attempt, "train")}

    assert min(values(resumed)) == checkpoint.manifest.step + 1
    assert values(killed) | values(resumed) == values(uninterrupted)
    assert resumed.result["held_out_loss"] == uninterrupted.result["held_out_loss"]
    expected, found = final_tensors(uninterrupted.run_dir), final_tensors(killed.run_dir)
    assert len(expected) > 10
    assert found == expected
    report(f"{layout}: killed after the checkpoint of step {checkpoint.manifest.step}, resumed, 20 steps bit for bit")


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (0, "bf16"), (1, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")])
def test_a_resumed_run_trains_with_the_optimizer_settings_it_is_given_now(tmp_path, stage, precision):
    options = (f"zero=stage{stage}", f"precision={precision}", "lr_scheduler=constant", "lr_scheduler.warmup_steps=0")
    steps = ("training.max_steps=4", "checkpoint.save_every=2", "training.evaluate_every=2")
    first = trained(tmp_path / "run", *options, *steps, world_size=2)
    at_checkpoint = entries(first, "evaluate")[0]["held_out_loss"]
    assert first.result["held_out_loss"] != pytest.approx(at_checkpoint, rel=1e-4)

    def resumed_loss(*changes: str) -> float:
        attempt = trained(tmp_path / "run", *options, *steps, *changes, world_size=2, resume_tag="global_step2")
        (rate,) = {entry["lr"] for entry in entries(attempt, "train")}
        assert rate == attempt_lr(attempt)
        return attempt.result["held_out_loss"]

    # Each of these changes leaves the weights where they are, and only if all of its settings are in force.
    assert resumed_loss("optimizer.lr=0") == at_checkpoint
    still = ("optimizer.betas=[0.0,0.0]", "optimizer.eps=1", "training.gradient_clipping=1e-9", "optimizer.weight_decay=0")
    assert resumed_loss(*still) == pytest.approx(at_checkpoint, rel=1e-6)
    # lr x weight_decay = 1 takes all away from the matrices, and a model of nothing finds every token equally likely.
    assert resumed_loss("optimizer.lr=1e-4", "optimizer.weight_decay=1e4") == pytest.approx(math.log(128), rel=1e-4)


def attempt_lr(attempt: Attempt) -> float:
    lr: float = read_json(attempt.path / "config.json")["optimizer"]["lr"]
    return lr


def test_only_the_newest_checkpoints_stay(tmp_path):
    options = ("training.max_steps=6", "checkpoint.save_every=2", "checkpoint.keep=2", "zero=stage1")
    attempt = trained(tmp_path / "run", *options, world_size=1)
    kept = complete_checkpoints(checkpoint_dir(attempt.run_dir))
    assert [checkpoint.tag for checkpoint in kept] == ["global_step4", "global_step6"]
    assert attempt.result["checkpoint"] == str(kept[-1].path)
    assert kept[-1].manifest.consumed_samples == 6 * 16


@pytest.mark.parametrize("trouble", ["missing", "unfinished", "other stage", "other data", "damaged"])
def test_a_checkpoint_that_cannot_be_loaded_fails_the_run(tmp_path, trouble):
    options = ("training.max_steps=2", "checkpoint.save_every=1", "zero=stage1")
    trained(tmp_path / "run", *options, world_size=1)
    tag_dir = checkpoint_dir(tmp_path / "run") / "global_step1"
    changes = {"other stage": ("zero=stage2",), "other data": ("data.sequence_length=8",)}.get(trouble, ())
    if trouble == "unfinished":
        (tag_dir / "manifest.json").unlink()
    if trouble == "damaged":
        (tag_dir / "mp_rank_00_model_states.pt").write_bytes(b"half")
    tag = "global_step7" if trouble == "missing" else "global_step1"
    attempt = new_attempt(tmp_path / "run", (*options, *changes), world_size=1, resume_tag=tag)
    with pytest.raises(RankFailedError):
        run_ranks(WORKER, attempt.path, world_size=1, directory=attempt.path / "ranks")
    assert attempt.result is None
    assert not (attempt.path / "metrics.jsonl").exists()
    left = failure(attempt, 0)
    assert left["error"]
    assert "Traceback" in left["traceback"]
