"""A port for the rendezvous of a run."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

from orchestrator.launch.locks import locked, runtime_dir

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 20000
_TRIES = 50
_GIVEN = "ports"
_KEPT_SECONDS = 1800.0
"""So long a port is kept for the run it was given to: its rank 0 listens there within that time, and then it shows."""


def free_port() -> int:
    """A TCP port that nobody listens on, and that no other launch of this user on this machine was given of late.

    Outside the range from which the kernel gives ports to connections, as rank 0 takes it a minute later. It is drawn at
    random, so that runs of other users that start at once do not meet.
    """
    try:
        first_ephemeral = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 32768
    drawn = random.sample(range(_LOWEST, max(first_ephemeral, _LOWEST + _TRIES)), _TRIES)
    try:
        given = runtime_dir() / _GIVEN
        with locked(given / ".taking"):
            free = (port for port in drawn if not _is_kept(given / str(port)) and _is_free(port))
            return _keep(next(free, None) or _any_port(), given)
    except OSError:
        # no place for such notes: as good as it gets without
        return next((port for port in drawn if _is_free(port)), None) or _any_port()


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        given: int = probe.getsockname()[1]
    return given


def _keep(port: int, given: Path) -> int:
    """Write down that the port is given; those that were given long ago are forgotten."""
    for path in given.glob("[0-9]*"):
        if not _is_kept(path):
            path.unlink(missing_ok=True)
    (given / str(port)).touch()
    return port


def _is_kept(path: Path) -> bool:
    try:
        return 0 <= time.time() - path.stat().st_mtime < _KEPT_SECONDS
    except FileNotFoundError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
