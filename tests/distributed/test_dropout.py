"""Dropout with shared layers: ranks that hold the same stay the same, and what is computed again is dropped again."""

from __future__ import annotations

import pytest

from tests.distributed.attempts import curve, new_attempt, trained
from tests.distributed.ranks import run_ranks

TP2 = "parallelism.tensor_parallel_size=2"
FAMILIES = {
    "gpt2": ("model.family=gpt2", "model.num_key_value_heads=null", "model.tie_word_embeddings=true"),
    "gpt_neox": ("model.family=gpt_neox", "model.num_key_value_heads=null"),
}
OPTIONS = ("model.dropout=0.1", "training.max_steps=5", "lr_scheduler.warmup_steps=0", "zero=stage1")


@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_that_ranks_hold_whole_stay_equal_to_the_bit(tmp_path, family, sequence_parallel):
    options = (*OPTIONS, *FAMILIES[family], TP2, f"parallelism.sequence_parallel={sequence_parallel}")
    attempt = new_attempt(tmp_path / "run", options, world_size=2)
    function = "tests.distributed.replica_ranks:whole_parameters_after_training"
    first, second = run_ranks(function, attempt.path, world_size=2, directory=tmp_path / "ranks")
    assert len(first) > 8
    assert first == second


@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputation_drops_the_same_again(tmp_path, family, sequence_parallel):
    options = (*OPTIONS, *FAMILIES[family], TP2, f"parallelism.sequence_parallel={sequence_parallel}")
    kept = curve(trained(tmp_path / "none", *options, world_size=2))
    for policy in ("full", "every_k_layers", "selective"):
        words = (f"activation_checkpointing.policy={policy}",)
        assert curve(trained(tmp_path / policy, *options, *words, world_size=2)) == kept, policy


@pytest.mark.parametrize("schedule", ["one_f_one_b", "gpipe"])
def test_recomputation_in_a_pipeline_drops_the_same_again(tmp_path, schedule):
    options = (*OPTIONS, *FAMILIES["gpt2"], "parallelism.pipeline_parallel_size=2", f"parallelism.schedule={schedule}")
    kept = curve(trained(tmp_path / "none", *options, world_size=2))
    recomputed = curve(trained(tmp_path / "full", *options, "activation_checkpointing=full", world_size=2))
    assert recomputed == kept


def test_dropout_drops_something(tmp_path):
    options = (*OPTIONS, *FAMILIES["gpt2"], TP2)
    dropped = curve(trained(tmp_path / "dropped", *options, world_size=2))
    whole = curve(trained(tmp_path / "whole", *options, "model.dropout=0", world_size=2))
    assert dropped[0] != pytest.approx(whole[0], rel=1e-5)
