"""Seconds that a collective takes in a group of ranks: rings in a host, rings over hosts that share the network.

In a ring over several hosts each host sends as much as one rank does, over the share of its network that is left when the
other groups of its kind do the same; inside the hosts the ring goes on at the speed of their links. NCCL lets an all-reduce
cross the hosts as a tree, all-gather and reduce-scatter only as a ring. Sizes may be arrays.
"""

from __future__ import annotations

from orchestrator.planning.broadcast import doublings, larger
from orchestrator.planning.cost.collectives import Collective, bytes_sent_per_rank
from orchestrator.planning.cost.placement import Placement
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.parameters import Size


def all_reduce_seconds(size_bytes: Size, group: Placement, speeds: Speeds, *, messages: Size = 1) -> Size:
    """All-reduce of ``size_bytes`` on every rank, in so many messages; nothing in a group of one."""
    sent = bytes_sent_per_rank(Collective.all_reduce, size_bytes=size_bytes, num_ranks=group.num_ranks)
    seconds = _ring_seconds(sent, group, link=speeds.all_reduce_bandwidth, network=speeds.network_bandwidth)
    return seconds + messages * _latency(group, speeds, 2 * doublings(group.num_hosts))


def gather_seconds(
    size_bytes: Size, group: Placement, speeds: Speeds, *, messages: Size = 1, network: float | None = None
) -> Size:
    """All-gather to, or reduce-scatter from, ``size_bytes`` on every rank; ``network``: a host's, if not the usual."""
    sent = bytes_sent_per_rank(Collective.all_gather, size_bytes=size_bytes, num_ranks=group.num_ranks)
    bandwidth = speeds.network_bandwidth if network is None else network
    seconds = _ring_seconds(sent, group, link=speeds.link_bandwidth, network=bandwidth)
    return seconds + messages * _latency(group, speeds, group.num_hosts - 1)


def _ring_seconds(sent: Size, group: Placement, *, link: float, network: float) -> Size:
    over_network = sent * group.groups_on_host / network * (group.num_hosts > 1)
    return larger(sent / link * (group.ranks_on_host > 1), over_network)


def _latency(group: Placement, speeds: Speeds, steps_between_hosts: Size) -> Size:
    return (group.num_ranks > 1) * speeds.link_latency + speeds.network_latency * steps_between_hosts
