"""What a controller and the agent of a host say to each other: JSON, one object a line.

::

    agent       {"event": "ready", "host", "pid", "port"}           it runs; port is free on its host
    controller  {"do": "start", ...}                                a StartOrder, with the secrets of the run
    agent       {"event": "started", "session"}                     the session of what it started
    agent       {"event": "ranks", "seen", "gone"}                  ranks have come or gone: lists of rank and pid
    agent       {"event": "output", "text"}                         a line that was printed
    both        {"event": "beat"}, {"do": "beat"}                   every BEAT_SECONDS
    controller  {"do": "stop"}                                      SIGTERM, later SIGKILL; a second one: SIGKILL now
    agent       {"event": "exited", "exit_code", "left"}            the launcher has ended, and left these ranks behind
    agent       {"event": "ended", "reason"}                        the last: its session is empty

Either side takes the other for dead after SILENCE_SECONDS without a line. What an agent's host prints beside (a banner, a
message of ssh) is no JSON, and counts as output. Standard library only: every host of a run loads this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

BEAT_SECONDS = 3.0
SILENCE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """What an agent starts. It travels on standard input alone: ``environment`` has the secrets of the run."""

    argv: tuple[str, ...]
    """Nothing: only what an earlier run has left on the host is removed."""
    environment: Mapping[str, str] = field(repr=False)
    """Added to the agent's own."""
    working_directory: str
    setup: tuple[str, ...]
    """Shell lines before it, in bash; one that fails ends the start."""
    stop_seconds: float
    stop_signal: str = "SIGTERM"
    """What a first request to stop sends."""
    swap_directory: str | None = None
    """Of the run on this host's NVMe disk, removed at the end if ``swap_owner`` is its owner."""
    swap_owner: str | None = None
    swap_owner_file: str = ""
    """In that directory; it says whose it is."""

    def to_message(self) -> dict[str, Any]:
        """The order as a message."""
        return {"do": "start", **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> StartOrder:
        """The order that a message holds."""
        values = {name: value for name, value in message.items() if name != "do"}
        return cls(**values | {"argv": tuple(values["argv"]), "setup": tuple(values["setup"])})


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as the line that carries it."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The message of a line; None if it is something else."""
    if not line.startswith(b"{"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and ("event" in message or "do" in message) else None
