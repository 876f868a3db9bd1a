"""Which layers each pipeline stage holds.

The model is one list of layers, numbered from 0: the token embedding, the learned positions where the family has them, the
transformer blocks, the final norm, and the head with the loss. A partition cuts that list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from orchestrator.config.enums import Family, PipelineSchedule
from orchestrator.planning.model_spec import ModelSpec

UNIFORM, PARAMETERS, BALANCED, EXPLICIT = "uniform", "parameters", "balanced", "explicit"
METHODS = (UNIFORM, PARAMETERS, BALANCED, EXPLICIT)
"""The methods that are a word; ``type:REGEX`` is the other one."""
TYPE_PREFIX = "type:"

TOKEN_EMBEDDING, POSITION_EMBEDDING, FINAL_NORM, OUTPUT_HEAD = "TokenEmbedding", "PositionEmbedding", "FinalNorm", "OutputHead"
BLOCK_CLASSES: Mapping[Family, str] = MappingProxyType(
    {
        Family.gpt2: "GPT2Block",
        Family.llama: "LlamaDecoderLayer",
        Family.mistral: "MistralDecoderLayer",
        Family.qwen2: "Qwen2DecoderLayer",
        Family.qwen3: "Qwen3DecoderLayer",
        Family.gpt_neox: "GPTNeoXLayer",
        Family.gemma2: "Gemma2DecoderLayer",
        Family.phi3: "Phi3DecoderLayer",
    }
)
"""Hugging Face's class of a transformer block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers of the list, from ``start`` to before ``stop``, and what they are."""

    start: int
    stop: int
    first_layer: int
    """The first transformer layer, counted among the transformer layers."""
    num_layers: int
    """Transformer layers; none on a stage that only holds an end of the model."""
    has_embedding: bool
    """The token embedding."""
    has_positions: bool
    """Learned positions."""
    has_final_norm: bool
    has_head: bool
    """Output head and loss. A tied head is a second copy of the embedding unless the same ranks hold both."""

    @property
    def kind(self) -> tuple[int, bool, bool, bool, bool]:
        """What it holds, wherever that is in the model."""
        return self.num_layers, self.has_embedding, self.has_positions, self.has_final_norm, self.has_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The stages in the order of the layers; together they hold every layer once.

    ``boundaries`` are the first layer of each stage, and the number of layers. With DualPipeV there are two stages for each
    pipeline coordinate: coordinate r holds stages r and 2 pp - 1 - r.
    """

    boundaries: tuple[int, ...]
    layer_names: tuple[str, ...]
    """Class name of each layer."""
    stages: tuple[Stage, ...]
    stages_per_rank: int = 1

    @property
    def num_coordinates(self) -> int:
        """Number of pipeline coordinates, the pipeline-parallel size."""
        return len(self.stages) // self.stages_per_rank

    def held_by(self, coordinate: int) -> tuple[Stage, ...]:
        """The stages of pipeline coordinate ``coordinate``."""
        first = self.stages[coordinate]
        return (first,) if self.stages_per_rank == 1 else (first, self.stages[len(self.stages) - 1 - coordinate])

    def coordinate_of(self, stage: int) -> int:
        """The pipeline coordinate that holds stage ``stage``."""
        return stage if stage < self.num_coordinates else len(self.stages) - 1 - stage


def stages_per_rank(schedule: PipelineSchedule, pipeline_parallel_size: int) -> int:
    """Stages that each rank holds: DualPipeV gives it one on the way out and one on the way back."""
    return 2 if schedule is PipelineSchedule.dual_pipe_v and pipeline_parallel_size > 1 else 1


def layer_names(spec: ModelSpec) -> tuple[str, ...]:
    """Class name of each layer of the list, in order."""
    ends = (TOKEN_EMBEDDING, POSITION_EMBEDDING) if spec.facts.learned_positions else (TOKEN_EMBEDDING,)
    return (*ends, *[BLOCK_CLASSES[spec.family]] * spec.num_hidden_layers, FINAL_NORM, OUTPUT_HEAD)


def num_model_layers(spec: ModelSpec) -> int:
    """Length of the list of layers."""
    return num_leading_layers(spec) + spec.num_hidden_layers + 2


def num_leading_layers(spec: ModelSpec) -> int:
    """Layers before the first transformer layer."""
    return 2 if spec.facts.learned_positions else 1


def matched_layers(spec: ModelSpec, method: str) -> list[int]:
    """The layers whose class name the regular expression of ``type:REGEX`` finds, whatever the case. Raises re.error."""
    pattern = re.compile(method.removeprefix(TYPE_PREFIX), re.IGNORECASE)
    return [index for index, name in enumerate(layer_names(spec)) if pattern.search(name)]


def partition_layers(
    spec: ModelSpec,
    *,
    pipeline_parallel_size: int,
    method: str,
    boundaries: Sequence[int] | None = None,
    stages_per_rank: int = 1,
) -> Partition:
    """Cut the model by any method but ``balanced``, which needs more than the model (``balanced.py``).

    ``uniform`` spreads the transformer layers evenly, the first stages taking what is left over. ``parameters`` makes the
    largest stage as small as it can be, the embedding counted on the first and the head on the last. ``type:REGEX`` spreads
    the layers that it finds evenly. ``explicit`` takes ``boundaries``. The rules have checked that the method can be followed.
    """
    num_stages = pipeline_parallel_size * stages_per_rank
    if num_stages == 1:
        cuts: Sequence[int] = (0, num_model_layers(spec))
    elif method == EXPLICIT:
        assert boundaries is not None
        cuts = boundaries
    elif method.startswith(TYPE_PREFIX):
        cuts = _by_type(spec, method, num_stages)
    else:
        assert method in (UNIFORM, PARAMETERS), method
        assert num_stages <= spec.num_hidden_layers
        counts = _uniform(spec.num_hidden_layers, num_stages) if method == UNIFORM else _by_parameters(spec, num_stages)
        cuts = boundaries_of_counts(spec, counts)
    return partition_at(spec, cuts, stages_per_rank=stages_per_rank)


def boundaries_of_counts(spec: ModelSpec, counts: Sequence[int]) -> tuple[int, ...]:
    """The boundaries of stages with so many transformer layers each; the model's ends go to the first and the last."""
    assert sum(counts) == spec.num_hidden_layers
    leading = num_leading_layers(spec)
    inner = [leading + sum(counts[: index + 1]) for index in range(len(counts) - 1)]
    return (0, *inner, num_model_layers(spec))


def partition_at(spec: ModelSpec, boundaries: Sequence[int], *, stages_per_rank: int = 1) -> Partition:
    """The partition with these boundaries."""
    names = layer_names(spec)
    assert boundaries[0] == 0
    assert boundaries[-1] == len(names)
    stages = [_stage(spec, start, stop) for start, stop in pairwise(boundaries)]
    return Partition(boundaries=tuple(boundaries), layer_names=names, stages=tuple(stages), stages_per_rank=stages_per_rank)


def spread(num_layers: int, capacities: Sequence[int]) -> list[int]:
    """Spread the layers as evenly as the capacities allow, what is left over going to the first stages with room."""
    assert sum(capacities) >= num_layers
    low, high = 0, num_layers
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


def _stage(spec: ModelSpec, start: int, stop: int) -> Stage:
    assert start < stop
    leading, blocks, last = num_leading_layers(spec), spec.num_hidden_layers, num_model_layers(spec) - 1
    first, end = (min(max(index - leading, 0), blocks) for index in (start, stop))
    return Stage(
        start=start,
        stop=stop,
        first_layer=first,
        num_layers=end - first,
        has_embedding=start == 0,
        has_positions=leading == 2 and start <= 1 < stop,
        has_final_norm=start <= last - 1 < stop,
        has_head=stop == last + 1,
    )


def _uniform(num_layers: int, num_stages: int) -> list[int]:
    share, rest = divmod(num_layers, num_stages)
    return [share + (stage < rest) for stage in range(num_stages)]


def _by_type(spec: ModelSpec, method: str, num_stages: int) -> tuple[int, ...]:
    """Each stage begins with its first layer that counts, and the first stage with the model."""
    matched = matched_layers(spec, method)
    assert len(matched) >= num_stages
    counts = _uniform(len(matched), num_stages)
    inner = [matched[sum(counts[: index + 1])] for index in range(num_stages - 1)]
    return (0, *inner, num_model_layers(spec))


def _by_parameters(spec: ModelSpec, num_stages: int) -> list[int]:
    """All layers weigh the same, so only how many fit under a bound on the first, the middle and the last stage matters."""
    layers, weight = spec.num_hidden_layers, spec.layer_parameters
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
    return spread(layers, capacities(low))
