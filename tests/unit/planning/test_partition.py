"""Layers to pipeline stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.enums import Family, PipelineSchedule
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.planning.partition import layer_names, partition_layers
from tests.unit.planning.configurations import gpu_cluster, plan_of, run_config

SPEC = model_spec_from_config(run_config().model)


def counts(num_layers, num_stages, method="uniform", vocab_size=32000):
    spec = replace(SPEC, num_hidden_layers=num_layers, vocab_size=vocab_size)
    stages = partition_layers(spec, pipeline_parallel_size=num_stages, method=method).stages
    return tuple(stage.num_layers for stage in stages)


def heaviest(layer_counts, spec):
    weights = [count * spec.layer_parameters for count in layer_counts]
    weights[0] += spec.embedding_parameters
    weights[-1] += spec.head_parameters + spec.final_norm_parameters
    return max(weights)


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "expected"), [(96, 4, (24,) * 4), (10, 4, (3, 3, 2, 2)), (4, 4, (1,) * 4), (5, 1, (5,))]
)
def test_uniform_spreads_layers_evenly(num_layers, num_stages, expected):
    assert counts(num_layers, num_stages) == expected


def test_stages_know_their_layers_and_the_ends_of_the_model():
    stages = partition_layers(replace(SPEC, num_hidden_layers=10), pipeline_parallel_size=4, method="uniform").stages
    assert [stage.first_layer for stage in stages] == [0, 3, 6, 8]
    assert [stage.has_embedding for stage in stages] == [True, False, False, False]
    assert [stage.has_head for stage in stages] == [False, False, False, True]


def test_by_parameters_gives_fewer_layers_to_the_ends():
    # An embedding of about two and a half layers.
    assert counts(20, 4, "parameters") == (4, 6, 6, 4)


def test_a_vocabulary_that_outweighs_all_layers_leaves_one_at_each_end():
    assert counts(8, 4, "parameters", vocab_size=10**6) == (1, 3, 3, 1)


@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from([100, 32000, 200_000]))
def test_by_parameters_is_as_balanced_as_can_be(num_layers, num_stages, vocab_size):
    if num_layers < num_stages:
        return
    spec = replace(SPEC, num_hidden_layers=num_layers, vocab_size=vocab_size)
    found = counts(num_layers, num_stages, "parameters", vocab_size)
    assert sum(found) == num_layers
    assert min(found) >= 1
    cuts = combinations(range(1, num_layers), num_stages - 1)
    ways = [tuple(b - a for a, b in zip((0, *cut), (*cut, num_layers), strict=True)) for cut in cuts]
    assert heaviest(found, spec) == min(heaviest(way, spec) for way in ways)


def boundaries(method, num_stages, **fields):
    spec = replace(SPEC, **fields)
    return partition_layers(spec, pipeline_parallel_size=num_stages, method=method).boundaries


def test_a_model_without_a_pipeline_is_one_stage_whatever_the_method():
    for method in ("uniform", "parameters", "type:nothing", "explicit"):
        assert boundaries(method, 1) == (0, 19)


def test_learned_positions_are_a_layer():
    spec = replace(SPEC, family=Family.gpt2, num_hidden_layers=3)
    assert layer_names(spec) == (
        "TokenEmbedding",
        "PositionEmbedding",
        "GPT2Block",
        "GPT2Block",
        "GPT2Block",
        "FinalNorm",
        "OutputHead",
    )
    assert partition_layers(spec, pipeline_parallel_size=3, method="uniform").boundaries == (0, 3, 4, 7)


@pytest.mark.parametrize("family", Family)
def test_every_family_has_the_class_of_its_block(family):
    name = layer_names(replace(SPEC, family=family))[-3]
    assert family.value.replace("_", "") in name.lower()


def test_by_type_spreads_what_the_expression_finds_whatever_the_case():
    assert boundaries("type:DECODER", 4) == (0, 5, 9, 13, 19)
    assert boundaries("type:decoder|norm|head", 2) == (0, 10, 19)
    assert boundaries("type:^(Token|Output)", 2) == (0, 18, 19)


def test_explicit_boundaries_may_cut_anywhere():
    stages = partition_layers(SPEC, pipeline_parallel_size=4, method="explicit", boundaries=[0, 1, 17, 18, 19]).stages
    assert [stage.num_layers for stage in stages] == [0, 16, 0, 0]
    assert [stage.has_embedding for stage in stages] == [True, False, False, False]
    assert [stage.has_final_norm for stage in stages] == [False, False, True, False]
    assert [stage.has_head for stage in stages] == [False, False, False, True]


def test_dual_pipe_v_folds_the_stages():
    partition = partition_layers(SPEC, pipeline_parallel_size=4, method="uniform", stages_per_rank=2)
    assert partition.num_coordinates == 4
    assert [[stage.start for stage in partition.held_by(rank)] for rank in range(4)] == [[0, 15], [3, 13], [5, 11], [7, 9]]
    assert [partition.coordinate_of(stage) for stage in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]


class TestBalanced:
    def plan(self, **changes):
        plan = plan_of(run_config(parallelism__partition_method="balanced", **changes))
        assert plan.partition is not None, plan.findings
        return plan

    def layers(self, plan):
        return [stage.num_layers for stage in plan.partition.stages]

    def test_the_head_takes_the_time_of_layers(self):
        # A head of 128 thousand tokens takes as long as about nine layers.
        plan = self.plan(parallelism__pipeline_parallel_size=4, model__vocab_size=128_000, model__num_hidden_layers=32)
        counts = self.layers(plan)
        assert counts[3] < min(counts[:3]) - 6
        assert self.time(counts, 128_000) <= self.time([10, 10, 11, 1], 128_000)

    def time(self, counts, vocab_size):
        layer = 3 * (2 * (1024 * 1024 * 3 + 3 * 1024 * 2816) + 4 * 1024 * 1024)
        head = 6 * vocab_size * 1024
        return max([*[count * layer for count in counts[:-1]], counts[-1] * layer + head])

    @pytest.mark.parametrize("vocab_size", [2000, 32000, 300_000])
    @pytest.mark.parametrize(("num_layers", "num_stages"), [(6, 2), (9, 4), (7, 8)])
    def test_no_other_cut_is_faster(self, vocab_size, num_layers, num_stages):
        plan = self.plan(
            parallelism__pipeline_parallel_size=num_stages,
            model__num_hidden_layers=num_layers + 1,
            model__vocab_size=vocab_size,
        )
        inner = range(num_layers + 2)
        ways = [
            counts
            for cut in combinations_with_replacement(inner, num_stages - 1)
            if min((counts := [b - a for a, b in zip((0, *cut), (*cut, num_layers + 1), strict=True)])[1:-1], default=1) > 0
        ]
        assert self.time(self.layers(plan), vocab_size) == min(self.time(way, vocab_size) for way in ways)

    def test_a_stage_that_would_not_fit_gives_layers_away(self):
        pipeline = {"parallelism__pipeline_parallel_size": 2, "training__train_micro_batch_size_per_gpu": 16}
        free = self.plan(**pipeline, training__gradient_accumulation_steps=16)
        even = free.memory.device
        assert even[0].device_bytes > even[1].device_bytes
        between = (even[0].device_bytes * 2 + even[1].device_bytes) / 3 / 2**30
        tight = self.plan(
            **pipeline,
            training__gradient_accumulation_steps=16,
            cluster=gpu_cluster(device_memory_gib=between),
            planner__memory_margin=0.0,
        )
        assert tight.fits
        assert self.layers(tight)[0] < self.layers(free)[0]

    def test_if_nothing_fits_the_peak_is_the_smallest(self):
        changes = {
            "parallelism__pipeline_parallel_size": 2,
            "training__gradient_accumulation_steps": 16,
            "training__train_micro_batch_size_per_gpu": 16,
            "cluster": gpu_cluster(device_memory_gib=3.0),
        }
        plan = self.plan(**changes)
        assert plan.verdict == "infeasible"
        peak = max(entry.device_bytes for entry in plan.memory.device)
        for cut in range(1, 18):
            other = plan_of(
                run_config(parallelism__partition_method="explicit", parallelism__partition_boundaries=[0, cut, 19], **changes)
            )
            assert max(entry.device_bytes for entry in other.memory.device) >= peak

    def test_dual_pipe_v_is_balanced_over_twice_as_many_stages(self):
        plan = self.plan(
            parallelism__pipeline_parallel_size=2,
            parallelism__schedule=PipelineSchedule.dual_pipe_v,
            model__vocab_size=128_000,
        )
        counts = self.layers(plan)
        assert len(counts) == 4
        assert counts[3] < min(counts[:3])
