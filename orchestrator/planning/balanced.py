"""The partition whose slowest stage is as fast as it can be, among those that fit into device memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.config.enums import RecomputePolicy
from orchestrator.planning.capacity import usable_bytes
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.parameters import layer_matrix_parameters
from orchestrator.planning.partition import Partition, Stage, boundaries_of_counts, partition_at, spread


def balanced_partition(estimator: Estimator, *, stages_per_rank: int) -> Partition:
    """Cut the model between its transformer layers; the ends go to the first and the last stage, which may hold nothing else.

    The slowest stage decides the pace of a pipeline, so its time is minimised first, counted in floating point operations of
    a forward and backward pass, what is recomputed and the head included. Only stages that fit into device memory with their
    micro-batches in flight count; of the partitions with the same pace that with the smallest peak is taken. If none fits,
    it is the one with the smallest peak, and of those the fastest.
    """
    search = _Search(estimator=estimator, stages_per_rank=stages_per_rank)
    memory = estimator.cluster.smallest_device_memory_bytes
    usable = usable_bytes(memory, estimator.config.planner.memory_margin)
    paces = sorted({pace for stage in range(search.num_stages) for pace in search.paces(stage)})
    if search.counts(paces[-1], usable) is None:
        usable = _smallest(lambda peak: search.counts(paces[-1], peak) is not None, 0, search.highest_peak(paces[-1]))
    best = _smallest(lambda index: search.counts(paces[index], usable) is not None, 0, len(paces) - 1)
    peak = _smallest(lambda peak: search.counts(paces[best], peak) is not None, 0, usable)
    counts = search.counts(paces[best], peak)
    assert counts is not None
    return partition_at(estimator.spec, boundaries_of_counts(estimator.spec, counts), stages_per_rank=stages_per_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """How many transformer layers each stage can take under a bound on time and one on memory."""

    estimator: Estimator
    stages_per_rank: int
    known: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    @property
    def num_stages(self) -> int:
        return self.estimator.layout.pipeline_parallel_size * self.stages_per_rank

    def paces(self, stage: int) -> list[int]:
        """Operations of ``stage`` for every number of layers it may hold."""
        block, end = self._operations(stage)
        most = self.estimator.spec.num_hidden_layers - (self.num_stages - 2)
        return [end + count * block for count in range(self._least(stage), most + 1)]

    def highest_peak(self, pace: int) -> int:
        """A bound of memory under which everything is possible."""
        return max(
            self._peak(rank, [self._most(stage, pace) for stage in self._stages_of(rank)]) for rank in range(self._num_ranks)
        )

    def counts(self, pace: int, memory: int) -> list[int] | None:
        """Layers of each stage so that none is slower than ``pace`` and no rank needs more than ``memory`` bytes."""
        most = [self._most(stage, pace) for stage in range(self.num_stages)]
        if any(count < self._least(stage) for stage, count in enumerate(most)):
            return None
        for rank in range(self._num_ranks):
            stages = self._stages_of(rank)
            least = sum(self._least(stage) for stage in stages)
            limits = [most[stage] for stage in stages]
            if self._peak(rank, self._split(stages, least, limits)) > memory:
                return None
            fitting = self._fitting(rank, limits, memory)
            for stage, count in zip(stages, self._split(stages, fitting, limits), strict=True):
                most[stage] = count
        layers = self.estimator.spec.num_hidden_layers
        return self._split(range(self.num_stages), layers, most) if sum(most) >= layers else None

    def _fitting(self, rank: int, limits: Sequence[int], memory: int) -> int:
        """The most layers of ``rank``, at most ``limits`` in its stages, that need no more than ``memory``; its least do."""
        stages = self._stages_of(rank)

        def too_much(total: int) -> bool:
            return self._peak(rank, self._split(stages, total, limits)) > memory

        least = sum(self._least(stage) for stage in stages)
        most = min(sum(limits), self.estimator.spec.num_hidden_layers)
        return most if not too_much(most) else _smallest(too_much, least, most) - 1

    @property
    def _num_ranks(self) -> int:
        return self.estimator.layout.pipeline_parallel_size

    def _stages_of(self, rank: int) -> list[int]:
        return [rank] if self.stages_per_rank == 1 else [rank, self.num_stages - 1 - rank]

    def _least(self, stage: int) -> int:
        """The first and the last stage hold an end of the model already."""
        return 0 if stage in (0, self.num_stages - 1) else 1

    def _most(self, stage: int, pace: int) -> int:
        block, end = self._operations(stage)
        return min((pace - end) // block, self.estimator.spec.num_hidden_layers)

    def _split(self, stages: Sequence[int], total: int, limits: Sequence[int]) -> list[int]:
        least = [self._least(stage) for stage in stages]
        rooms = [limit - count for limit, count in zip(limits, least, strict=True)]
        # Levelled over all a stage holds: what it holds at least is part of the level, not on top of it.
        counts = spread(total, limits)
        if all(count >= fewest for count, fewest in zip(counts, least, strict=True)):
            return counts
        return [fewest + more for fewest, more in zip(least, spread(total - sum(least), rooms), strict=True)]

    def _peak(self, rank: int, counts: Sequence[int]) -> int:
        key = (rank, tuple(counts))
        if key not in self.known:
            held = [self._stage(stage, count) for stage, count in zip(self._stages_of(rank), counts, strict=True)]
            self.known[key] = self.estimator.device_bytes(rank, held)
        return self.known[key]

    def _stage(self, stage: int, count: int) -> Stage:
        """A stage with ``count`` transformer layers, wherever they are: all are alike."""
        spec, first, last = self.estimator.spec, stage == 0, stage == self.num_stages - 1
        blocks = spec.num_hidden_layers
        counts = [count, blocks - count] if first else [blocks - count, count]
        if not (first or last):
            counts = [0, count, blocks - count]
        part = partition_at(spec, boundaries_of_counts(spec, counts))
        return part.stages[0 if first else 1]

    def _operations(self, stage: int) -> tuple[int, int]:
        """Floating point operations a token of one transformer layer, and of the end of the model that ``stage`` holds."""
        spec, tokens = self.estimator.spec, self.estimator.config.data.sequence_length
        matrices = 2 * int(layer_matrix_parameters(spec.facts, spec.hidden_size, spec.layer_widths()))
        attention = 4 * spec.num_attention_heads * spec.head_dim * tokens
        again = {
            RecomputePolicy.none: 0,
            RecomputePolicy.selective: attention,
            RecomputePolicy.full: matrices + attention,
            RecomputePolicy.every_k_layers: matrices + attention,
        }
        block = 3 * (matrices + attention) + again[self.estimator.config.activation_checkpointing.policy]
        head = 3 * 2 * spec.vocab_size * spec.hidden_size
        return block, head if stage == self.num_stages - 1 else 0


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from ``low`` to ``high`` for which ``holds``, which does for ``high`` and all above the smallest."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
