"""Which ranks of a group share a host, and so who crosses the network.

DeepSpeed numbers ranks over (pipe, data, model), the last varying fastest, and a host holds consecutive ranks: tensor-parallel
groups are neighbours, data-parallel groups stand a tensor-parallel size apart, pipeline neighbours a whole stage. Sizes may be
ints or integer arrays that broadcast.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.parameters import Size, ceil_divide


class Placement(NamedTuple):
    """One communication group on the hosts."""

    num_ranks: Size
    ranks_on_host: Size
    """Of this group, on each host it touches."""
    num_hosts: Size
    groups_on_host: Size
    """Groups of this kind that use a host's network at the same time."""


def placed(*, num_ranks: Size, stride: Size, slots: int) -> Placement:
    """``num_ranks`` ranks, ``stride`` apart, on hosts of ``slots`` devices."""
    on_host = smaller(larger(slots // stride, 1), num_ranks)
    return Placement(
        num_ranks=num_ranks,
        ranks_on_host=on_host,
        num_hosts=ceil_divide(num_ranks, on_host),
        groups_on_host=larger(slots // on_host, 1),
    )
