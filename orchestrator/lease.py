"""The lease of an attempt: a small file that its controller renews, and without which no rank of the attempt may live.

It lies in the attempt's directory, which every host sees. Ranks read it every few seconds and end themselves when it is gone
or has not moved for too long: so a controller that dies, whatever started the ranks, leaves no orphan. It also carries what
the controller asks of all ranks. The file is written in place: a name that is replaced may stay cached on a network disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LEASE = "lease"
RENEW_SECONDS = 3.0
EXPIRE_SECONDS = 18.0
"""Without a renewal for so long, seconds, a rank takes its controller for dead."""
_RECORD = "{beat:<20d} {request:<20s}\n"


class Request(StrEnum):
    """What a controller asks of all ranks."""

    go_on = "go_on"
    save_and_stop = "save_and_stop"
    dump_stacks = "dump_stacks"


class Lease:
    """The controller's side. ``renew`` at least every ``RENEW_SECONDS``; ``end`` when no rank may live any more."""

    def __init__(self, attempt: Path) -> None:
        self._path = attempt / LEASE
        self._beat = 0
        self._request = Request.go_on
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o644)
        self.renew()

    def renew(self) -> None:
        """Say that the controller lives.

        Raises:
            OSError: the disk cannot be written to.
        """
        self._beat += 1
        os.pwrite(self._file, _RECORD.format(beat=self._beat, request=self._request).encode(), 0)

    def ask(self, request: Request) -> None:
        """Ask something of all ranks, from now on."""
        self._request = request
        self.renew()

    def end(self) -> None:
        """Take the lease back: ranks that still live end at once."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a rank sees of its lease. ``reason`` says why it is over; None while it holds."""

    request: Request
    reason: str | None


class LeaseWatch:
    """A rank's side. A rank that was started without a controller has no lease, and nothing to watch."""

    def __init__(self, attempt: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = attempt / LEASE
        self._clock = clock
        self._beat = -1
        self._moved = clock()
        self._request = Request.go_on
        self.is_held = self._path.exists()

    def look(self) -> Sight:
        """Read the lease; what cannot be read counts as not renewed."""
        reason = None
        try:
            beat, request = self._path.read_text(encoding="ascii").split()
            if int(beat) != self._beat:
                self._beat, self._moved, self._request = int(beat), self._clock(), Request(request)
        except FileNotFoundError:
            reason = "the run was stopped"
        except (OSError, ValueError):
            pass
        silent = self._clock() - self._moved
        if reason is None and silent > EXPIRE_SECONDS:
            reason = f"the controller of the run has not been heard of for {silent:.0f} s"
        return Sight(request=self._request, reason=reason if self.is_held else None)
