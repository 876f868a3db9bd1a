"""fp16: a step that overflows changes nothing, the loss scale falls until steps go through, and all of it is in the metrics."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from orchestrator.run_dir import Attempt
from tests.distributed.attempts import curve, entries, new_attempt
from tests.distributed.ranks import run_ranks

LAYOUTS = {
    "dp2": ("zero=stage1",),
    "dp2 ZeRO-3": ("zero=stage3",),
    "pp2": ("zero=stage1", "parallelism.pipeline_parallel_size=2"),
    "pp2 dual_pipe_v": (
        "zero=stage1",
        "parallelism.pipeline_parallel_size=2",
        "parallelism.schedule=dual_pipe_v",
        "model.num_hidden_layers=4",
    ),
    "pp2 gpipe": ("zero=stage1", "parallelism.pipeline_parallel_size=2", "parallelism.schedule=gpipe"),
    "tp2": ("zero=stage1", "parallelism.tensor_parallel_size=2"),
}
OPTIONS = ("precision=fp16", "cluster.precisions=[fp16]", "training.max_steps=14", "lr_scheduler.warmup_steps=0")
TOO_HIGH = 24


def trained_in_fp16(tmp_path, *options: str) -> Attempt:
    attempt = new_attempt(tmp_path / "run", (*OPTIONS, *options), world_size=2)
    run_ranks("tests.distributed.fp16:run_with_fp16", attempt.path, world_size=2, directory=attempt.path / "ranks")
    return attempt


def steps(attempt: Attempt) -> list[dict[str, Any]]:
    found = entries(attempt, "train")
    assert [entry["step"] for entry in found] == list(range(1, 15))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_overflow_skips_the_step_halves_the_scale_and_training_recovers(tmp_path, report, layout):
    attempt = trained_in_fp16(tmp_path, *LAYOUTS[layout], f"precision.initial_scale_power={TOO_HIGH}", "precision.hysteresis=1")
    log = steps(attempt)
    assert log[0]["loss_scale"] == 2**TOO_HIGH
    for entry, following in pairwise(log):
        assert following["loss_scale"] == entry["loss_scale"] / (2 if entry["skipped"] else 1)
    first_taken = next(number for number, entry in enumerate(log) if not entry["skipped"])
    assert 0 < first_taken < 10
    assert not log[-1]["skipped"]
    # Skipped steps use up no learning rate.
    assert {entry["lr"] for entry in log[: first_taken + 1]} == {log[0]["lr"]}
    assert log[first_taken + 1]["lr"] < log[0]["lr"]
    report(
        f"fp16 {layout}: {sum(entry['skipped'] for entry in log)} steps skipped, "
        f"loss scale 2^{TOO_HIGH} to {log[-1]['loss_scale']:g}"
    )


@pytest.mark.parametrize("layout", ["dp2", "pp2", "tp2"])
def test_skipped_steps_leave_the_weights_alone(tmp_path, layout):
    common = (*LAYOUTS[layout], "lr_scheduler=constant", "precision.hysteresis=1")
    high = steps(trained_in_fp16(tmp_path / "high", *common, f"precision.initial_scale_power={TOO_HIGH}"))
    fine = steps(trained_in_fp16(tmp_path / "fine", *common, "precision.initial_scale_power=8", "optimizer.lr=0"))
    assert not any(entry["skipped"] for entry in fine)
    unlearned = [entry["loss"] for entry in fine]
    num_skipped = [entry["skipped"] for entry in high].index(False)
    assert num_skipped > 0
    # Up to the first step that is taken, which is measured before it is, the model is that of a run that never learns.
    assert [entry["loss"] for entry in high[: num_skipped + 1]] == pytest.approx(unlearned[: num_skipped + 1], rel=1e-3)
    assert high[-1]["loss"] != pytest.approx(unlearned[-1], rel=1e-3)


@pytest.mark.parametrize("layout", ["dp2", "pp2", "tp2"])
def test_a_static_loss_scale_stays_what_it_is(tmp_path, layout):
    attempt = trained_in_fp16(tmp_path / "good", *LAYOUTS[layout], "precision.loss_scale=1024")
    log = steps(attempt)
    assert {entry["loss_scale"] for entry in log} == {1024.0}
    assert not any(entry["skipped"] for entry in log)
    assert len(set(curve(attempt))) == 14
    overflowing = steps(trained_in_fp16(tmp_path / "high", *LAYOUTS[layout], f"precision.loss_scale={2**TOO_HIGH}"))
    assert {entry["loss_scale"] for entry in overflowing} == {float(2**TOO_HIGH)}
    assert all(entry["skipped"] for entry in overflowing)


def test_a_tied_weight_in_a_pipeline_has_the_whole_gradient_when_it_is_accumulated_in_fp32(tmp_path):
    words = ("model.tie_word_embeddings=true", "precision.grad_accum_dtype=fp32", "precision.initial_scale_power=8")
    cut, whole = (
        trained_in_fp16(tmp_path / layout, *LAYOUTS[layout], *words, "training.max_steps=3") for layout in ("pp2", "dp2")
    )
    assert curve(cut, "grad_norm") == pytest.approx(curve(whole, "grad_norm"), rel=1e-3)
    assert curve(cut) == pytest.approx(curve(whole), rel=1e-4)
