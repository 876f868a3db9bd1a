"""What ring all-reduce gives and sends; runs in a rank."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.models.communication.ring import ring_all_reduce

DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "int64")
SHAPES = ((1,), (7,), (0,), (3, 16), (1003,), (8, 3, 5))
TRAFFIC_ELEMENTS = 2**20
_SENT_AND_SENT_AGAIN = struct.Struct("200xQQ")
"""``tcpi_bytes_sent`` and ``tcpi_bytes_retrans`` in Linux's ``struct tcp_info``."""


@dataclass(frozen=True)
class Reduced:
    """One tensor: the bytes this rank sent, and whether the sum is that of ``torch.distributed.all_reduce``."""

    dtype: str
    element_size: int
    shape: tuple[int, ...]
    sent: int
    equal: bool


@dataclass(frozen=True)
class Traffic:
    """Bytes that left this process's sockets for one tensor of ``size_bytes``; None where the system does not count them."""

    size_bytes: int
    counted: int
    ring: int | None
    gloo: int | None


def reduced_tensors() -> list[Reduced]:
    """Whole numbers, which no order of the additions rounds."""
    dist.init_process_group("gloo")
    results = []
    for dtype in DTYPES:
        for shape in SHAPES:
            tensor = _values(shape, dist.get_rank()).to(getattr(torch, dtype))
            expected = tensor.clone()
            dist.all_reduce(expected)
            sent = ring_all_reduce(tensor)
            results.append(
                Reduced(
                    dtype=dtype,
                    element_size=tensor.element_size(),
                    shape=shape,
                    sent=sent,
                    equal=torch.equal(tensor, expected),
                )
            )
    dist.destroy_process_group()
    return results


def sums_in_a_group(members: list[int]) -> list[float]:
    """What every rank has after ``members`` have reduced among themselves: rank ``r`` brings ``10 ** r``."""
    dist.init_process_group("gloo")
    group = dist.new_group(members)
    tensor = torch.full((5,), 10.0 ** dist.get_rank())
    if dist.get_rank() in members:
        ring_all_reduce(tensor, group)
    dist.destroy_process_group()
    return tensor.tolist()


def traffic() -> Traffic:
    """Our ring and gloo's own all-reduce of the same tensor."""
    dist.init_process_group("gloo")
    tensor = torch.ones(TRAFFIC_ELEMENTS)
    counted: list[int] = []
    ring = _sent_during(lambda: counted.append(ring_all_reduce(tensor)))
    gloo = _sent_during(lambda: dist.all_reduce(tensor))
    dist.destroy_process_group()
    return Traffic(size_bytes=tensor.nbytes, counted=counted[0], ring=ring, gloo=gloo)


def _values(shape: tuple[int, ...], rank: int) -> torch.Tensor:
    elements = torch.Size(shape).numel()
    return (torch.arange(elements) * (rank + 3) % 11 - 4).reshape(shape)


def _sent_during(communicate: Callable[[], object]) -> int | None:
    """The barriers, a few hundred bytes, are counted too: after the last one, all that was sent has left."""
    dist.barrier()
    before = _bytes_sent()
    communicate()
    dist.barrier()
    after = _bytes_sent()
    return None if before is None or after is None else after - before


def _bytes_sent() -> int | None:
    """By all TCP sockets of this process, without what was sent again."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not entry.readlink().name.startswith("socket:"):
                continue
            # The duplicate is closed with the socket object, the original stays with gloo.
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            # Not a socket of TCP, or closed by now.
            continue
        if len(info) < _SENT_AND_SENT_AGAIN.size:
            return None
        sent, again = _SENT_AND_SENT_AGAIN.unpack_from(info)
        total += sent - again
    return total
