"""Held-out losses over the steps, in every layout, of the held-out part and of sets by name; and the checkpoint they choose."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from orchestrator.checkpoints.catalogue import complete_checkpoints
from orchestrator.run_dir import Attempt, checkpoint_dir
from tests.distributed.attempts import entries, trained
from tests.unit.tokens.written import write_folder

PP2 = "parallelism.pipeline_parallel_size=2"
LAYOUTS = {
    "zero 3, dp 2": (2, ("zero=stage3",)),
    "tp 2": (2, ("zero=stage1", "parallelism.tensor_parallel_size=2")),
    "pp 2": (2, ("zero=stage1", PP2)),
    "pp 2, dual_pipe_v": (2, ("zero=stage1", PP2, "parallelism.schedule=dual_pipe_v")),
}
OPTIONS = (
    "model.num_hidden_layers=4",
    "training.max_steps=12",
    "training.evaluate_at_start=true",
    "training.evaluate_every=3",
    "checkpoint.keep_best=true",
    "checkpoint.keep=1",
    "checkpoint.save_at_end=true",
    # Little data, learnt by heart: the held-out loss rises again, so that the best is not the last.
    "data.synthetic_tokens=1000",
    "lr_scheduler=constant",
)
STEPS = [0, 3, 6, 9, 12]


def named_set(folder: Path) -> str:
    """Prepared tokens that are easier than the random ones of the training."""
    state = random.Random(1)
    documents = [[state.randrange(8) for _ in range(40)] for _ in range(50)]
    write_folder(folder, [documents], vocab_size=128)
    return f"data.evaluation.easy={folder}"


def losses(attempt: Attempt, name: str = "held_out_loss") -> dict[int, float]:
    return {entry["step"]: entry[name] for entry in entries(attempt, "evaluate")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """The same training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return trained(folder / "run", *OPTIONS, named_set(folder / "easy"), "zero=stage0", world_size=1)


def test_every_set_is_measured_at_the_start_on_the_way_and_at_the_end(alone: Attempt) -> None:
    assert list(losses(alone)) == STEPS
    assert losses(alone)[0] == pytest.approx(math.log(128), abs=0.1)
    last = entries(alone, "evaluate")[-1]
    assert last["perplexity/easy"] == pytest.approx(math.exp(last["held_out_loss/easy"]))
    assert alone.result["held_out_loss"] == last["held_out_loss"]
    assert alone.result["held_out_losses"] == {"easy": last["held_out_loss/easy"]}
    assert last["held_out_loss/easy"] != last["held_out_loss"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_measures_the_same_and_keeps_the_same_best(layout: str, alone: Attempt, tmp_path: Path) -> None:
    world_size, words = LAYOUTS[layout]
    attempt = trained(tmp_path / "run", *OPTIONS, named_set(tmp_path / "easy"), *words, world_size=world_size)
    for name in ("held_out_loss", "held_out_loss/easy"):
        assert losses(attempt, name) == pytest.approx(losses(alone, name), rel=1e-4)
    step = min(STEPS[1:], key=losses(attempt).__getitem__)
    assert 0 < step < 12, "the best must not be the last, or nothing is shown"
    best = attempt.result["best"]
    assert (best["step"], best["held_out_loss"]) == (step, losses(attempt)[step])
    assert best["checkpoint"] == str(checkpoint_dir(attempt.run_dir) / f"global_step{step}")
    kept = complete_checkpoints(checkpoint_dir(attempt.run_dir))
    assert [checkpoint.manifest.step for checkpoint in kept] == [step, 12]
    assert [checkpoint.manifest.held_out_loss for checkpoint in kept] == [losses(attempt)[step], losses(attempt)[12]]


def test_a_resumed_run_knows_the_best_of_the_attempts_before(tmp_path: Path) -> None:
    words = ("zero=stage2", "training.evaluate_at_start=false")
    first = trained(tmp_path / "run", *OPTIONS, *words, "training.max_steps=9", world_size=2)
    best = first.result["best"]
    assert best["step"] < 9
    second = trained(tmp_path / "run", *OPTIONS, *words, world_size=2, resume_tag="global_step9")
    assert list(losses(second)) == [12]
    assert second.result["best"] == best
    kept = complete_checkpoints(checkpoint_dir(first.run_dir))
    assert [checkpoint.manifest.step for checkpoint in kept] == [best["step"], 12]
    assert (checkpoint_dir(first.run_dir) / "best").read_text() == f"global_step{best['step']}\n"
