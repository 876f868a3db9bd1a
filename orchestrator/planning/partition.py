"""Which layers each pipeline stage holds."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.schema import PartitionMethod
from orchestrator.planning.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one pipeline stage holds: consecutive transformer layers, and the ends of the model."""

    first_layer: int
    num_layers: int
    has_embedding: bool
    """Token embedding (and learned positions): the first stage."""
    has_head: bool
    """Final norm, output head and loss: the last stage. A tied head is a second copy of the embedding there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The stages in order; together they hold every layer once."""

    stages: tuple[Stage, ...]


def partition_layers(spec: ModelSpec, *, pipeline_parallel_size: int, method: PartitionMethod) -> Partition:
    """Cut the model into stages of at least one layer each.

    ``uniform`` spreads the layers evenly, the first stages taking what is left over. ``parameters`` makes the largest stage
    as small as it can be, the embedding counted on the first and the head on the last. There must be at least as many layers
    as stages.
    """
    assert 1 <= pipeline_parallel_size <= spec.num_hidden_layers
    if method is PartitionMethod.uniform:
        counts = _uniform(spec.num_hidden_layers, pipeline_parallel_size)
    else:
        counts = _by_parameters(spec, pipeline_parallel_size)
    last = pipeline_parallel_size - 1
    stages = [
        Stage(first_layer=sum(counts[:index]), num_layers=count, has_embedding=index == 0, has_head=index == last)
        for index, count in enumerate(counts)
    ]
    return Partition(stages=tuple(stages))


def _uniform(num_layers: int, num_stages: int) -> list[int]:
    share, rest = divmod(num_layers, num_stages)
    return [share + (stage < rest) for stage in range(num_stages)]


def _by_parameters(spec: ModelSpec, num_stages: int) -> list[int]:
    """All layers weigh the same, so only how many fit under a bound on the first, the middle and the last stage matters."""
    layers, weight = spec.num_hidden_layers, spec.layer_parameters
    if num_stages == 1:
        return [layers]
    first = spec.embedding_parameters
    last = spec.final_norm_parameters + (spec.head_parameters or spec.vocab_size * spec.hidden_size)
    extras = [first, *[0] * (num_stages - 2), last]

    def capacities(bound: int) -> list[int]:
        return [max(1, (bound - extra) // weight) for extra in extras]

    low, high = weight, layers * weight + first + last
    while low < high:
        middle = (low + high) // 2
        if sum(capacities(middle)) >= layers:
            high = middle
        else:
            low = middle + 1
    return _fill(layers, capacities(low))


def _fill(num_layers: int, capacities: list[int]) -> list[int]:
    """Spread the layers as evenly as the capacities allow, what is left over going to the first stages with room."""
    low, high = 1, num_layers
    while low < high:
        level = (low + high + 1) // 2
        if sum(min(capacity, level) for capacity in capacities) <= num_layers:
            low = level
        else:
            high = level - 1
    counts = [min(capacity, low) for capacity in capacities]
    for stage, capacity in enumerate(capacities):
        if sum(counts) < num_layers and capacity > low:
            counts[stage] += 1
    return counts
