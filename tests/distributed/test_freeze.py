"""Frozen parameters stay what they were, and the others train as they would in a plain loop that froze the same."""

from __future__ import annotations

import re

import pytest
import torch

from orchestrator.checkpoints.catalogue import newest
from orchestrator.config.load import load_config
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.run_dir import checkpoint_dir
from tests.distributed.attempts import TINY, curve, largest_relative_difference, new_attempt, trained
from tests.distributed.ranks import run_ranks

FREEZE = [r"embed_tokens", r"layers\.0\."]
OPTIONS = (
    r"training.freeze=['embed_tokens','layers\.0\.']",
    "data.ignore_fraction=0.4",
    "training.gradient_clipping=0.1",
    "training.max_steps=6",
    "checkpoint.save_at_end=true",
    "model.num_hidden_layers=4",
    "zero.stage3_param_persistence_threshold=40",
)
TP2 = "parallelism.tensor_parallel_size=2"
PP2 = "parallelism.pipeline_parallel_size=2"
TIED = "model.tie_word_embeddings=true"
LAYOUTS = {
    "zero 0, dp 2": (2, ("zero=stage0",)),
    "zero 1, tp 2": (2, ("zero=stage1", TP2)),
    "zero 1, pp 2": (2, ("zero=stage1", PP2)),
    "zero 0, pp 2": (2, ("zero=stage0", PP2)),
    "zero 1, pp 2, tied": (2, ("zero=stage1", PP2, TIED)),
    "zero 3, dp 2": (2, ("zero=stage3",)),
    "zero 3, tp 2, dp 2": (4, ("zero=stage3", TP2)),
    "zero 1, tp 2, pp 2, recomputed": (4, ("zero=stage1", TP2, PP2, "activation_checkpointing=full")),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Losses and final weights of the plain loop, tied or not."""
    known = {}

    def loop(*tied: str) -> tuple[list[float], dict[str, torch.Tensor]]:
        if tied not in known:
            attempt = new_attempt(tmp_path_factory.mktemp("plain") / "run", (*OPTIONS, *tied), world_size=1)
            module, directory = "tests.distributed.plain_loop", attempt.path / "ranks"
            ((losses, _),) = run_ranks(f"{module}:train_plainly", attempt.path, world_size=1, directory=directory)
            (weights,) = run_ranks(f"{module}:weights_trained_plainly", attempt.path, world_size=1, directory=directory)
            known[tied] = (losses, weights)
        return known[tied]

    return loop


@pytest.fixture(scope="module")
def first_weights(tmp_path_factory):
    """What all trainings here start from, whole."""
    spec = model_spec_from_config(load_config([*TINY, *OPTIONS, "run_dir=unused"]).model)
    directory = tmp_path_factory.mktemp("first")
    (weights,) = run_ranks("tests.distributed.plain_loop:first_weights", spec, 1234, world_size=1, directory=directory)
    return weights


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frozen_parameters_stay_and_the_others_train_as_in_a_plain_loop(tmp_path, plain, first_weights, layout):
    world_size, words = LAYOUTS[layout]
    attempt = trained(tmp_path / "run", *OPTIONS, *words, world_size=world_size)
    losses, weights = plain(*(word for word in words if word == TIED))
    assert largest_relative_difference(curve(attempt), losses) < 1e-5
    checkpoint = newest(checkpoint_dir(attempt.run_dir))
    function = "tests.distributed.exported:export_folder"
    place = (checkpoint.path, tmp_path / "hf", "fp32")
    (trained_weights,) = run_ranks(function, *place, world_size=1, directory=tmp_path / "ranks")
    assert trained_weights.keys() == weights.keys()
    frozen = {name for name in weights if any(re.search(pattern, name) for pattern in FREEZE)}
    assert len(frozen) == 10
    for name, weight in trained_weights.items():
        if name in frozen:
            assert torch.equal(weight, first_weights[name]), name
        else:
            # Single elements may differ by more: Adam's first steps divide even the smallest gradient by its own size.
            assert (weight - weights[name]).norm() < 1e-3 * weights[name].norm(), name
            assert not torch.equal(weight, first_weights[name]), name


@pytest.mark.parametrize("schedule", ["one_f_one_b", "gpipe", "dual_pipe_v"])
def test_a_frozen_tied_embedding_trains_alike_in_every_bf16_pipeline(tmp_path, schedule):
    words = (*OPTIONS, TIED, "precision=bf16", "zero=stage1", "training.gradient_accumulation_steps=4")
    words = (*words, "training.train_micro_batch_size_per_gpu=null", "checkpoint.save_at_end=false")
    # a folded pipeline would have a stage with nothing to train if the first block were frozen too
    words = (*words, "training.freeze=['embed_tokens']")
    alone = trained(tmp_path / "alone" / "run", *words, world_size=1)
    piped = trained(tmp_path / "piped" / "run", *words, PP2, f"parallelism.schedule={schedule}", world_size=2)
    # the same sums in another order, in a format of 8 bits
    assert largest_relative_difference(curve(piped), curve(alone)) < 1e-2
