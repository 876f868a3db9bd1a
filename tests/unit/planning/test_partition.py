"""Layers to pipeline stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.schema import PartitionMethod
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.planning.partition import partition_layers
from tests.unit.planning.configurations import run_config

SPEC = model_spec_from_config(run_config().model)


def counts(num_layers, num_stages, method=PartitionMethod.uniform, vocab_size=32000):
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
    stages = partition_layers(
        replace(SPEC, num_hidden_layers=10), pipeline_parallel_size=4, method=PartitionMethod.uniform
    ).stages
    assert [stage.first_layer for stage in stages] == [0, 3, 6, 8]
    assert [stage.has_embedding for stage in stages] == [True, False, False, False]
    assert [stage.has_head for stage in stages] == [False, False, False, True]


def test_by_parameters_gives_fewer_layers_to_the_ends():
    # An embedding of about two and a half layers.
    assert counts(20, 4, PartitionMethod.parameters) == (4, 6, 6, 4)


def test_a_vocabulary_that_outweighs_all_layers_leaves_one_at_each_end():
    assert counts(8, 4, PartitionMethod.parameters, vocab_size=10**6) == (1, 3, 3, 1)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.sampled_from([100, 32000, 200_000]))
def test_by_parameters_is_as_balanced_as_can_be(num_layers, num_stages, vocab_size):
    if num_layers < num_stages:
        return
    spec = replace(SPEC, num_hidden_layers=num_layers, vocab_size=vocab_size)
    found = counts(num_layers, num_stages, PartitionMethod.parameters, vocab_size)
    assert sum(found) == num_layers
    assert min(found) >= 1
    cuts = combinations(range(1, num_layers), num_stages - 1)
    ways = [tuple(b - a for a, b in zip((0, *cut), (*cut, num_layers), strict=True)) for cut in cuts]
    assert heaviest(found, spec) == min(heaviest(way, spec) for way in ways)
