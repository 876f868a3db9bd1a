"""The tensor-parallel group of a process: who shares its layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelGroup:
    """The ranks that share every layer, and this rank among them.

    ``process_group`` is None where nothing is ever communicated: with one rank, and where shards are only cut or merged.
    With ``sequence_parallel`` the activations between the blocks are cut along the sequence. ``key_value_group`` are the
    neighbours that hold the same key and value head, where there are fewer of those than ranks.
    """

    rank: int = 0
    size: int = 1
    process_group: ProcessGroup | None = None
    key_value_group: ProcessGroup | None = None
    sequence_parallel: bool = False


ALONE = TensorParallelGroup()
"""The group of a process that shares its layers with nobody."""
