"""Parallel axes, ranks and batch sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.layout import Coordinate, ParallelLayout, layout_from_config, legal_splits
from tests.unit.planning.configurations import run_config


def layout_of(num_devices=8, **changes):
    layout, findings = layout_from_config(run_config(**changes), num_devices)
    assert layout is not None, findings
    return layout


def findings_of(num_devices=8, **changes):
    layout, findings = layout_from_config(run_config(**changes), num_devices)
    assert layout is None
    return {finding.field: finding for finding in findings}


def batch(train=None, micro=None, accumulation=None):
    return {
        "training__train_batch_size": train,
        "training__train_micro_batch_size_per_gpu": micro,
        "training__gradient_accumulation_steps": accumulation,
    }


class TestAxes:
    def test_gpt3_on_1024_devices(self):
        layout = layout_of(
            1024, parallelism__tensor_parallel_size=8, parallelism__pipeline_parallel_size=4, **batch(train=1536, micro=1)
        )
        assert layout.data_parallel_size == 32
        assert layout.world_size == 8 * 4 * 32 == 1024

    def test_model_ranks_are_neighbours_and_stages_are_blocks(self):
        layout = layout_of(8, parallelism__tensor_parallel_size=2, parallelism__pipeline_parallel_size=2)
        coordinates = [layout.coordinate(rank) for rank in range(8)]
        assert coordinates[:4] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
        assert [coordinate.pipe for coordinate in coordinates] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert list(layout.stage_ranks(1)) == [4, 5, 6, 7]

    @given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
    def test_ranks_and_coordinates_are_inverse(self, tp, pp, dp):
        layout = ParallelLayout(
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            data_parallel_size=dp,
            train_batch_size=dp,
            train_micro_batch_size_per_gpu=1,
            gradient_accumulation_steps=1,
        )
        for rank in range(layout.world_size):
            coordinate = layout.coordinate(rank)
            assert layout.rank(coordinate) == rank
            assert rank in layout.stage_ranks(coordinate.pipe)
        last = Coordinate(pipe=pp - 1, data=dp - 1, model=tp - 1)
        assert layout.rank(last) == layout.world_size - 1

    def test_dictionaries_go_both_ways(self):
        layout = layout_of(8, parallelism__tensor_parallel_size=2)
        assert ParallelLayout.from_dict(layout.to_dict()) == layout
        assert list(layout.to_dict()) == [
            "world_size",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        ]

    def test_a_product_that_does_not_divide_the_devices_lists_those_that_do(self):
        finding = findings_of(8, parallelism__tensor_parallel_size=3)["parallelism.tensor_parallel_size"]
        assert "3" in finding.message
        assert "8 devices" in finding.message
        assert "2x4" in finding.fix
        assert "4x2" in finding.fix

    def test_legal_splits_divide_the_devices(self):
        splits = legal_splits(12)
        assert (3, 4) in splits
        assert splits[0] == (1, 1)
        assert all(12 % (tp * pp) == 0 for tp, pp in splits)

    def test_a_data_parallel_size_must_fill_the_devices(self):
        finding = findings_of(8, parallelism__data_parallel_size=3)["parallelism.data_parallel_size"]
        assert "= 3" in finding.message
        assert "data_parallel_size=8" in finding.fix
        assert layout_of(8, parallelism__data_parallel_size=8).data_parallel_size == 8

    def test_everything_wrong_is_reported_at_once(self):
        found = findings_of(
            8,
            parallelism__tensor_parallel_size=0,
            parallelism__pipeline_parallel_size=-2,
            **batch(train=0, micro=-1),
        )
        assert set(found) == {
            "parallelism.tensor_parallel_size",
            "parallelism.pipeline_parallel_size",
            "training.train_batch_size",
            "training.train_micro_batch_size_per_gpu",
        }


class TestBatch:
    def test_accumulation_stands_in_for_a_batch_that_does_not_fit(self):
        layout = layout_of(1, **batch(micro=4, accumulation=16))
        assert layout.train_batch_size == 64

    @pytest.mark.parametrize(
        ("given_sizes", "expected"),
        [
            (batch(train=64, micro=2), (64, 2, 4)),
            (batch(train=64, accumulation=2), (64, 4, 2)),
            (batch(micro=2, accumulation=4), (64, 2, 4)),
            (batch(train=64, micro=2, accumulation=4), (64, 2, 4)),
            (batch(train=64), (64, 8, 1)),
            (batch(micro=3), (24, 3, 1)),
        ],
    )
    def test_two_sizes_give_the_third(self, given_sizes, expected):
        layout = layout_of(8, **given_sizes)
        sizes = (layout.train_batch_size, layout.train_micro_batch_size_per_gpu, layout.gradient_accumulation_steps)
        assert sizes == expected

    @pytest.mark.parametrize(
        ("given_sizes", "message", "fix"),
        [
            (batch(train=16, micro=3, accumulation=2), "48", "training.train_batch_size=48"),
            (batch(train=20, micro=2), "16", "training.train_batch_size=16"),
            (batch(train=30, accumulation=2), "16", "training.train_batch_size=32"),
            (batch(train=7), "8", "training.train_batch_size=8"),
        ],
    )
    def test_sizes_that_do_not_multiply_are_refused_with_the_nearest_that_do(self, given_sizes, message, fix):
        finding = findings_of(8, **given_sizes)["training.train_batch_size"]
        assert message in finding.message
        assert fix in finding.fix

    def test_the_fix_of_a_refused_batch_is_accepted(self):
        for train in (1, 7, 20, 63, 1000):
            finding = findings_of(8, **batch(train=train, micro=3))["training.train_batch_size"]
            repaired = int(finding.fix.split("train_batch_size=")[1].split(",")[0])
            assert layout_of(8, **batch(train=repaired, micro=3)).train_batch_size == repaired

    def test_no_batch_at_all_is_refused(self):
        assert "training.train_batch_size" in findings_of(8, **batch())
        assert "training.train_batch_size" in findings_of(8, **batch(accumulation=2))

    @given(
        st.integers(1, 64),
        st.one_of(st.none(), st.integers(-2, 300)),
        st.one_of(st.none(), st.integers(-2, 20)),
        st.one_of(st.none(), st.integers(-2, 20)),
    )
    def test_a_layout_multiplies_or_there_is_a_finding(self, devices, train, micro, accumulation):
        layout, findings = layout_from_config(run_config(**batch(train, micro, accumulation)), devices)
        assert (layout is None) == bool(findings)
        if layout is not None:
            product = layout.train_micro_batch_size_per_gpu * layout.gradient_accumulation_steps * devices
            assert layout.train_batch_size == product > 0
            assert train in (None, layout.train_batch_size)
            assert micro in (None, layout.train_micro_batch_size_per_gpu)
            assert accumulation in (None, layout.gradient_accumulation_steps)
