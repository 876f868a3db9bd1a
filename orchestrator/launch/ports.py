"""A port for the rendezvous of a run."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20000
_TRIES = 50


def free_port() -> int:
    """A TCP port nobody listens on at the moment of asking.

    Outside the range from which the kernel gives ports to connections: rank 0 takes it a minute later, and it is drawn at
    random, so that runs that start at once do not meet.
    """
    try:
        first_ephemeral = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 32768
    for port in random.sample(range(_LOWEST, max(first_ephemeral, _LOWEST + _TRIES)), _TRIES):
        if _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        given: int = probe.getsockname()[1]
    return given


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
