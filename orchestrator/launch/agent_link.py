"""The controller's end of the line to the agent of one host."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.launch.protocol import SILENCE_SECONDS, StartOrder, decode, encode

_REAP_SECONDS = 2.0
Events = queue.Queue["AgentLink"]
"""Links on which something has happened, besides output."""


@dataclass(slots=True)
class RankSighting:
    """What an agent saw of a rank. ``gone`` is when it had gone, in seconds since the epoch, on the controller's clock."""

    rank: int
    pid: int
    gone: float | None = None


@dataclass(slots=True, kw_only=True)
class AgentLink:
    """One agent, and the process (itself, or the ssh to it) that carries its words."""

    node_rank: int
    host: str
    process: subprocess.Popen[bytes]
    events: Events = field(repr=False)
    output: Callable[[str], None] = field(repr=False)
    """Takes each line that the host prints."""
    heard: float = field(default_factory=time.monotonic)
    """When it last said something; infinite while its words are being passed on, which a disk may delay."""
    ready: Mapping[str, Any] | None = None
    exited: Mapping[str, Any] | None = None
    """How the launcher on this host ended."""
    ended: bool = False
    """Whether the agent has said its last word: nothing is left on its host."""
    stopped: float | None = None
    """When it was first asked to stop, seconds since the epoch."""
    closed: bool = False
    """Whether its output has ended; nothing more will come."""
    ranks: dict[int, RankSighting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the agent has said its last word, or can say none any more."""
        return self.ended or self.closed

    @property
    def exit_code(self) -> int | None:
        """The launcher's exit code on this host; None while it runs, or when nobody can say any more."""
        return None if self.exited is None else int(self.exited["exit_code"])

    @property
    def ranks_left(self) -> tuple[int, ...]:
        """Ranks that had outlived the launcher, before anybody had asked for its end."""
        return () if self.exited is None or self.exited["asked"] else tuple(self.exited["left"])

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard for so long that host or link must be dead."""
        return not self.is_over and time.monotonic() - self.heard > SILENCE_SECONDS

    def start(self, order: StartOrder) -> None:
        """Have the launcher started."""
        self._send(order.to_message())

    def beat(self) -> None:
        """Say that the controller lives."""
        self._send({"do": "beat"})

    def stop(self) -> None:
        """Have everything ended; a second time, at once."""
        self.stopped = self.stopped or time.time()
        self._send({"do": "stop"})

    def drop(self) -> None:
        """Give the agent up: it ends its session when its orders end."""
        self.process.kill()
        self.close_orders()
        # others may hold the pipe open, as a shared connection of ssh does: its end is not waited for
        self.closed = True

    def close(self, seconds: float) -> int | None:
        """Wait for the process that carried the words; its exit code, None if it had to be killed."""
        self.close_orders()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def close_orders(self) -> None:
        """Give no more of them: an agent that has not ended ends now."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        # an agent that has gone is noticed by what it does not say
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(encode(message))
            self.process.stdin.flush()

    def _listen(self) -> None:
        """Whatever ends the listening closes the link: a controller would wait for ever for one that nobody listens to."""
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self.heard = float("inf")
                message = decode(line)
                if message is None:
                    self.output(line.decode(errors="replace"))
                elif message["event"] == "output":
                    self.output(message["text"])
                else:
                    self._note(message)
                self.heard = time.monotonic()
        finally:
            self.process.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                # its exit code is looked at as soon as it is closed
                self.process.wait(_REAP_SECONDS)
            self.closed = True
            self.events.put(self)

    def _note(self, message: Mapping[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self.ready = message
            case "exited":
                self.exited = {**message, "asked": self.stopped is not None}
            case "ended":
                self.ended = True
            case "ranks":
                now = time.time()
                for rank, pid in (*message["seen"], *message["gone"]):
                    self.ranks.setdefault(rank, RankSighting(rank, pid))
                for rank, _ in message["gone"]:
                    self.ranks[rank].gone = now
            case _:
                return
        self.events.put(self)
