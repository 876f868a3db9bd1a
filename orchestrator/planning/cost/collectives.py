"""What a collective costs: bytes that each rank sends, and seconds from the latency and the bandwidth of a link.

In every round of these algorithms each rank sends one message and receives one, so a round takes the latency and the message
over the bandwidth. All-gather, reduce-scatter and broadcast pass on round a ring and all-reduce is the second and the first in
turn; in all-to-all each pair of ranks has a round of its own. Sources: Thakur, Rabenseifner, Gropp 2005, "Optimization of
collective communication operations in MPICH"; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters
of workstations". ``N`` is the number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.planning.parameters import Size


class Collective(StrEnum):
    """Kinds of communication. The size of each is that of the tensor named here, as one rank sees it whole."""

    all_reduce = "all_reduce"
    """The tensor that is reduced."""
    all_gather = "all_gather"
    """The gathered tensor; each rank brings an N-th."""
    reduce_scatter = "reduce_scatter"
    """The tensor before it is scattered; each rank keeps an N-th."""
    broadcast = "broadcast"
    """The tensor of the source."""
    all_to_all = "all_to_all"
    """What one rank has for all ranks; an N-th stays with it."""
    point_to_point = "point_to_point"
    """The message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The slowest connection that the ranks use, in one direction."""

    bandwidth_bytes_per_second: float
    latency_seconds: float

    def message_seconds(self, size_bytes: float) -> float:
        """One message on its own."""
        return self.latency_seconds + size_bytes / self.bandwidth_bytes_per_second


def bytes_sent_per_rank(collective: Collective, *, size_bytes: Size, num_ranks: Size) -> Size:
    """Bytes that the busiest rank sends; nothing with one rank. Sizes may be arrays.

    All-reduce ``2 (N - 1) / N`` of the size; all-gather, reduce-scatter and all-to-all ``(N - 1) / N``; a broadcast and a
    message once the size, sent on by every rank but the last.
    """
    match collective:
        case Collective.all_reduce:
            return 2 * (num_ranks - 1) * size_bytes / num_ranks
        case Collective.all_gather | Collective.reduce_scatter | Collective.all_to_all:
            return (num_ranks - 1) * size_bytes / num_ranks
        case Collective.broadcast | Collective.point_to_point:
            return size_bytes * (num_ranks > 1)


def collective_seconds(collective: Collective, *, size_bytes: float, num_ranks: int, link: Link) -> float:
    """Time from a common start until the last rank is done; nothing with one rank."""
    assert num_ranks >= 1 and size_bytes >= 0
    sent = bytes_sent_per_rank(collective, size_bytes=size_bytes, num_ranks=num_ranks)
    if num_ranks == 1:
        return 0
    match collective:
        case Collective.broadcast:
            return _pipelined_broadcast_seconds(size_bytes, num_ranks, link)
        case Collective.point_to_point:
            return link.message_seconds(size_bytes)
        case Collective.all_reduce:
            rounds = 2 * (num_ranks - 1)
        case Collective.all_gather | Collective.reduce_scatter | Collective.all_to_all:
            rounds = num_ranks - 1
    return rounds * link.message_seconds(sent / rounds)


def _pipelined_broadcast_seconds(size_bytes: float, num_ranks: int, link: Link) -> float:
    """A chain of ranks that pass on pieces: ``pieces + N - 2`` rounds, with the number of pieces that makes it fastest.

    The derivative by the number of pieces vanishes at ``sqrt((N - 2) x transfer time / latency)``; of the whole numbers
    around it the better one is the best of all, as the time is convex.
    """

    def seconds(pieces: int) -> float:
        return (pieces + num_ranks - 2) * link.message_seconds(size_bytes / pieces)

    transfer_seconds = size_bytes / link.bandwidth_bytes_per_second
    if link.latency_seconds == 0:
        return transfer_seconds
    pieces = max(1, math.floor(math.sqrt((num_ranks - 2) * transfer_seconds / link.latency_seconds)))
    return min(seconds(pieces), seconds(pieces + 1))
