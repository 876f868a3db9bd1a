"""The lease of an attempt: a small file that its controller renews, and without which no rank of the attempt may live.

It lies in the attempt's directory, which every host sees. Ranks read it every few seconds and end themselves when it is over,
is gone, or has not moved for too long: so a controller that dies, whatever started the ranks, leaves no orphan. It also carries
what the controller asks of all ranks.

The file is written in place: a name that is replaced may stay cached on a network disk. It is opened and closed at every
renewal and at every look, for that is when NFS sends what was written, and asks whether what it has is still true. It stays
when the attempt has ended, so that a rank that starts too late knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LEASE = "lease"
RENEW_SECONDS = 3.0
EXPIRE_SECONDS = 18.0
"""Without a renewal for so long, seconds, a rank takes its controller for dead."""
OVER_EXIT_CODE = 87
"""A rank that ends because its lease is over ends with this."""
_LOOK_SECONDS = 0.5
_ANCIENT_SECONDS = 3600.0
"""No clocks are so far apart: a lease that is older, by its date, is over."""
_RECORD = "{beat:<20d} {request:<20s}\n"


class Request(StrEnum):
    """What a controller asks of all ranks."""

    go_on = "go_on"
    save_and_stop = "save_and_stop"
    dump_stacks = "dump_stacks"
    end = "end"


class Lease:
    """The controller's side. ``renew`` at least every ``RENEW_SECONDS``; ``end`` when no rank may live any more.

    Raises:
        OSError: from every method, when the disk cannot be written to.
    """

    def __init__(self, attempt: Path) -> None:
        self._path = attempt / LEASE
        self._beat = 0
        self._request = Request.go_on
        self._path.touch()
        self.renew()

    def renew(self) -> None:
        """Say that the controller lives."""
        self._beat += 1
        with self._path.open("r+b", buffering=0) as file:
            file.write(_RECORD.format(beat=self._beat, request=self._request).encode())

    def ask(self, request: Request) -> None:
        """Ask something of all ranks, from now on. They see it within ``RENEW_SECONDS``: leave it standing for that long."""
        self._request = request
        self.renew()

    def end(self) -> None:
        """Take the lease back: ranks that still live end at once, and those that start later as well."""
        self.ask(Request.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of a lease. ``reason`` says why it is over; None while it holds."""

    request: Request
    reason: str | None


class LeaseWatch:
    """The other side, of a rank or of whoever wants to know. Where there is no controller there is no lease to watch."""

    def __init__(self, attempt: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = attempt / LEASE
        self._clock = clock
        self._seen: tuple[int, Request] | None = None
        self._moved = clock()
        self.is_held = self._path.exists()

    def look(self) -> Sight:
        """Read the lease; what cannot be read counts as not renewed."""
        if not self.is_held:
            return Sight(request=Request.go_on, reason=None)
        asked = self._clock()
        gone = False
        try:
            record = _read(self._path)
            if record != self._seen:
                self._seen, self._moved = record, self._clock()
        except FileNotFoundError:
            gone = True
        except (OSError, ValueError):
            pass
        if self._clock() - asked > RENEW_SECONDS:
            # the disk did not answer, so the controller could not write either: its silence counts from now
            self._moved = self._clock()
        request = Request.go_on if self._seen is None else self._seen[1]
        silent = self._clock() - self._moved
        reason = None
        if gone or request is Request.end:
            reason = "the run was stopped"
        elif silent > EXPIRE_SECONDS:
            reason = f"the controller of the run has not been heard of for {silent:.0f} s"
        return Sight(request=request, reason=reason)


def renewed(attempts: Sequence[Path]) -> set[Path]:
    """Those attempts whose lease somebody renews.

    Takes ``EXPIRE_SECONDS`` if nobody renews one of them, however many there are, and else hardly any time.
    """
    alive: set[Path] = set()
    watched: dict[Path, bytes] = {}
    for attempt in attempts:
        try:
            age = abs(time.time() - (attempt / LEASE).stat().st_mtime)
            if age < 2 * RENEW_SECONDS:
                alive.add(attempt)
            elif age < _ANCIENT_SECONDS:
                watched[attempt] = (attempt / LEASE).read_bytes()
        except OSError:
            continue
    # an old one, or another clock: wait whether it moves
    until = time.monotonic() + EXPIRE_SECONDS
    while watched and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        moved = {attempt for attempt, first in watched.items() if _content(attempt) not in (first, None)}
        alive |= moved
        watched = {attempt: first for attempt, first in watched.items() if attempt not in moved}
    return alive


def _content(attempt: Path) -> bytes | None:
    try:
        return (attempt / LEASE).read_bytes()
    except OSError:
        return None


def _read(path: Path) -> tuple[int, Request]:
    beat, request = path.read_text(encoding="ascii").split()
    return int(beat), Request(request)
