"""Layers that several ranks share, over gloo, against the same layers in one process."""

from __future__ import annotations

import pytest

from orchestrator.models.communication.collectives import ALL_GATHER, REDUCE_SCATTER
from tests.distributed.ranks import run_ranks

RANKS = "tests.distributed.tensor_parallel_ranks"


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_divided_mlp_equals_the_whole_one(world_size, micro_batch, sequence_parallel, tmp_path):
    results = run_ranks(f"{RANKS}:mlp", sequence_parallel, micro_batch, False, world_size=world_size, directory=tmp_path)
    for result in results:
        assert max(result.differences.values()) < 5e-6, result.differences
        if sequence_parallel:
            assert result.forward == [ALL_GATHER, REDUCE_SCATTER]
            # The gradient of the row bias, which every rank adds to its share of the sequence, is summed besides.
            assert sorted(result.backward) == sorted([ALL_GATHER, "all_reduce", REDUCE_SCATTER])
        else:
            assert result.forward == ["all_reduce"]
            assert result.backward == ["all_reduce"]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_divided_mlp_can_be_recomputed(sequence_parallel, tmp_path):
    for result in run_ranks(f"{RANKS}:mlp", sequence_parallel, 3, True, world_size=2, directory=tmp_path):
        assert max(result.differences.values()) < 5e-6, result.differences


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_region_in_bf16_communicates_in_bf16(sequence_parallel, tmp_path):
    assert max(run_ranks(f"{RANKS}:half_precision", sequence_parallel, world_size=2, directory=tmp_path)) < 2e-2


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_a_sequence_is_split_and_gathered_in_order_and_nothing_is_kept_for_the_backward_pass(micro_batch, tmp_path):
    for differences, saved_bytes in run_ranks(f"{RANKS}:sequence_mappings", micro_batch, world_size=4, directory=tmp_path):
        assert max(differences.values()) < 1e-6, differences
        assert saved_bytes == 0


def test_tensors_of_the_caller_are_not_overwritten(tmp_path):
    assert run_ranks(f"{RANKS}:caller_keeps_its_tensors", world_size=2, directory=tmp_path) == [True, True]


@pytest.mark.parametrize("vocab_size", [10, 5], ids=["padded", "a rank with padding only"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_divided_embedding_equals_the_whole_one(vocab_size, sequence_parallel, tmp_path):
    for differences in run_ranks(f"{RANKS}:embedding", sequence_parallel, vocab_size, world_size=4, directory=tmp_path):
        assert max(differences.values()) < 1e-6, differences


@pytest.mark.parametrize(("world_size", "vocab_size"), [(2, 16), (2, 13), (4, 13), (4, 5)])
@pytest.mark.parametrize(("smoothing", "softcap"), [(0.0, None), (0.1, 5.0)])
def test_the_loss_of_divided_logits_equals_torchs(world_size, vocab_size, smoothing, softcap, tmp_path):
    results = run_ranks(f"{RANKS}:loss", vocab_size, smoothing, softcap, world_size=world_size, directory=tmp_path)
    assert len({result.loss for result in results}) == 1
    for result in results:
        assert result.loss == pytest.approx(result.expected, rel=1e-6)
        assert result.gradient_difference < 1e-6
        assert result.padding_is_zero
        assert result.calls == [ALL_GATHER]


def test_dropout_differs_between_ranks_only_inside_a_region_and_is_recomputed_alike(tmp_path):
    results = run_ranks(f"{RANKS}:dropout", world_size=4, directory=tmp_path)
    assert len({tuple(result.inside) for result in results}) == 4
    assert len({tuple(result.outside) for result in results}) == 1
    assert all(result.recomputed_alike for result in results)


def test_the_gradient_of_a_shared_parameter_is_summed_over_the_ranks_in_every_pass(tmp_path):
    # Two passes of 2 * (1 + 2); summing the accumulated gradient again would give 18.
    assert run_ranks(f"{RANKS}:gradient_of_a_shared_parameter", world_size=2, directory=tmp_path) == [(12.0, 12.0)] * 2
