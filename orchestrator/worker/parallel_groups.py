"""The process groups of a layout, and what DeepSpeed asks of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from orchestrator.models.layers import Fill
from orchestrator.models.shards import HfParameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.planning.layout import Coordinate, ParallelLayout
from orchestrator.planning.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelGroup:
    """The ranks that hold the same part of the model and read different batches, and this rank among them."""

    rank: int
    size: int
    process_group: ProcessGroup

    def read_once(self, fill: Fill) -> Fill:
        """``fill`` on the first replica, from which the others get what it wrote: a file is read once for all of them."""

        def filled(hf: HfParameter, values: Tensor) -> None:
            if self.rank == 0:
                fill(hf, values)
            if self.size > 1:
                dist.broadcast(values, src=dist.get_global_rank(self.process_group, 0), group=self.process_group)

        return filled


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelGroups:
    """The groups of this rank."""

    tensor: TensorParallelGroup
    data: DataParallelGroup


class ModelParallelUnit:
    """What DeepSpeed calls an ``mpu``: the groups of a model that is cut by tensors and not by layers.

    It is asked for exactly these methods; others change what DeepSpeed does, so there are none.
    """

    def __init__(self, groups: ParallelGroups) -> None:
        self._groups = groups

    def get_model_parallel_rank(self) -> int:
        """Place among the ranks that share the layers."""
        return self._groups.tensor.rank

    def get_model_parallel_world_size(self) -> int:
        """Ranks that share the layers."""
        return self._groups.tensor.size

    def get_model_parallel_group(self) -> ProcessGroup | None:
        """The ranks that share the layers."""
        return self._groups.tensor.process_group

    def get_data_parallel_rank(self) -> int:
        """Place among the replicas."""
        return self._groups.data.rank

    def get_data_parallel_world_size(self) -> int:
        """Replicas."""
        return self._groups.data.size

    def get_data_parallel_group(self) -> ProcessGroup:
        """The replicas."""
        return self._groups.data.process_group


def parallel_groups(layout: ParallelLayout, rank: int, spec: ModelSpec, *, sequence_parallel: bool) -> ParallelGroups:
    """Make the groups of a layout; all ranks call it together."""
    tp, dp, pp = layout.tensor_parallel_size, layout.data_parallel_size, layout.pipeline_parallel_size
    own = layout.coordinate(rank)

    def row(pipe: int, data: int) -> list[int]:
        return [layout.rank(Coordinate(pipe=pipe, data=data, model=model)) for model in range(tp)]

    rows = [row(pipe, data) for pipe in range(pp) for data in range(dp)]
    columns = [
        [layout.rank(Coordinate(pipe=pipe, data=data, model=model)) for data in range(dp)]
        for pipe in range(pp)
        for model in range(tp)
    ]
    sharers = tp // spec.num_key_value_heads if spec.num_key_value_heads < tp else 1
    neighbours = [ranks[first : first + sharers] for ranks in rows for first in range(0, tp, sharers)]
    data_group = _own_group(columns, rank)
    assert data_group is not None
    tensor = TensorParallelGroup(
        rank=own.model,
        size=tp,
        process_group=_own_group(rows, rank) if tp > 1 else None,
        key_value_group=_own_group(neighbours, rank) if sharers > 1 else None,
        sequence_parallel=sequence_parallel and tp > 1,
    )
    return ParallelGroups(tensor=tensor, data=DataParallelGroup(rank=own.data, size=dp, process_group=data_group))


@contextmanager
def group_timeout(timeout: datetime.timedelta) -> Iterator[None]:
    """Inside, every new group has this limit on its collectives: DeepSpeed makes its own and has no option for it."""
    original = dist.new_group
    dist.new_group = partial(original, timeout=timeout)
    try:
        yield
    finally:
        dist.new_group = original


def _own_group(groups: list[list[int]], rank: int) -> ProcessGroup | None:
    """Make all groups, in the same order on every rank; the one that ``rank`` is in."""
    made = {tuple(ranks): dist.new_group(ranks) for ranks in groups}
    return next((group for ranks, group in made.items() if rank in ranks), None)
