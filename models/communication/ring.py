"""A ring all-reduce made of point-to-point messages: what it sends can be counted."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def ring_all_reduce(tensor: torch.Tensor, group: ProcessGroup | None = None) -> int:
    """Sum a contiguous tensor over the ranks of ``group`` (all ranks by default), in place.

    The tensor is cut in as many chunks as there are ranks, the first of them longer by an element where it does not divide.
    In the reduce-scatter phase chunks travel round the ring, every rank adds its own, and each ends up with the sum of one
    chunk; in the all-gather phase the sums travel round. A sum is rounded to the tensor's dtype at every rank.

    Returns:
        The bytes this rank sent: ``2 (N - 1) / N`` of the tensor where it divides, else up to two elements more or less.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = list(tensor.view(-1).tensor_split(size))
    received = torch.empty_like(chunks[0])
    sent = 0
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arrived = received[: incoming.numel()]
        sent += _exchange(outgoing, arrived, group)
        incoming.add_(arrived)
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]
        sent += _exchange(outgoing, incoming, group)
    return sent


def _exchange(outgoing: torch.Tensor, incoming: torch.Tensor, group: ProcessGroup | None) -> int:
    """Send to the next rank of the ring while receiving from the one before; empty chunks are not sent. Returns bytes sent."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ring = dist.get_process_group_ranks(group)
    requests = []
    if outgoing.numel():
        requests.append(dist.isend(outgoing, ring[(rank + 1) % size], group=group))
    if incoming.numel():
        requests.append(dist.irecv(incoming, ring[(rank - 1) % size], group=group))
    for request in requests:
        request.wait()
    sent_bytes: int = outgoing.numel() * outgoing.element_size()
    return sent_bytes
