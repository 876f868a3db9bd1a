"""Attention that starts anew at each document is the same in every layout: as if each document were run alone."""

from __future__ import annotations

from functools import cache

import pytest

from tests.distributed.attempts import largest_relative_difference, new_attempt
from tests.distributed.ranks import run_ranks

RANKS = "tests.distributed.document_ranks"
TOLERANCE = 1e-4
COMMON = (
    "model.num_hidden_layers=4",
    "data.sequence_length=32",
    "training.train_batch_size=8",
    "training.gradient_clipping=0",
    "optimizer=sgd",
    "optimizer.lr=1.0",
    "optimizer.momentum=0",
    "optimizer.weight_decay=0",
    "lr_scheduler=constant",
    "lr_scheduler.warmup_steps=0",
)
FAMILIES = {
    "gpt2": ("model.family=gpt2", "model.num_key_value_heads=null", "model.tie_word_embeddings=true"),
    "llama": (),
    "mistral, eager": ("model.family=mistral", "model.hf_config={sliding_window:4}", "model.attention_implementation=eager"),
}
TP2, PP2 = "parallelism.tensor_parallel_size=2", "parallelism.pipeline_parallel_size=2"
ONE_ROW = "training.train_micro_batch_size_per_gpu=1"
FULL = "activation_checkpointing=full"
CASES = {
    "tp2": ("gpt2", 2, (TP2,)),
    "tp2 sp": ("gpt2", 2, (TP2, "parallelism.sequence_parallel=true")),
    "zero3": ("mistral, eager", 2, ("zero=stage3", "zero.stage3_param_persistence_threshold=0")),
    "pp2": ("gpt2", 2, (PP2, "training.train_micro_batch_size_per_gpu=2")),
    "pp2 gpipe, recomputed attention": (
        "mistral, eager",
        2,
        (PP2, "parallelism.schedule=gpipe", "activation_checkpointing.policy=selective"),
    ),
    "pp2, recomputed": ("llama", 2, (PP2, FULL)),
    "dual_pipe_v": ("llama", 2, (PP2, ONE_ROW, "parallelism.schedule=dual_pipe_v")),
    "tp2 pp2, recomputed from shares": (
        "llama",
        4,
        (TP2, PP2, "zero=stage1", FULL, "activation_checkpointing.partition_activations=true"),
    ),
}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """Losses of a family where each document is run alone, in one process."""

    @cache
    def losses(family):
        options = (*COMMON, *FAMILIES[family], "training.train_micro_batch_size_per_gpu=8")
        attempt = new_attempt(tmp_path_factory.mktemp("plain") / "run", options, world_size=1)
        (found,) = run_ranks(f"{RANKS}:losses_by_hand", attempt.path, world_size=1, directory=attempt.path / "ranks")
        return found

    return losses


@pytest.mark.parametrize("name", CASES)
def test_no_layout_lets_documents_see_each_other(tmp_path, by_hand, name):
    family, world_size, options = CASES[name]
    attempt = new_attempt(tmp_path / "run", (*COMMON, *FAMILIES[family], *options), world_size=world_size)
    function = f"{RANKS}:losses_in_layout"
    ranks = run_ranks(function, attempt.path, world_size=world_size, directory=attempt.path / "ranks")
    expected = by_hand(family)
    for losses in ranks:
        assert largest_relative_difference(losses.training, expected.training) < TOLERANCE
        assert losses.held_out == pytest.approx(expected.held_out, rel=TOLERANCE)
