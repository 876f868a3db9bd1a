"""Which ranks live in a session, and which has gone first. Standard library and psutil only."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, field

import psutil

from orchestrator.launch.processes import Session

_SCAN_SECONDS = 1.0
_BETWEEN_LOOKS = 0.03
"""Where the kernel does not tell of the end of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Ranks that have come and gone, with their pids."""

    seen: dict[int, int]
    gone: dict[int, int]


@dataclass(slots=True)
class RankWatch:
    """Follows the processes of a session that are ranks: the launcher has put ``RANK`` into their environment.

    The node launcher looks once a second, and then ends all ranks of its host: ``look`` more often, and the first to go is
    the one that failed.
    """

    session: Session
    living: dict[int, psutil.Process] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    _ends: dict[int, int] = field(default_factory=dict)
    """File descriptors that can be read as soon as a rank has ended."""
    _scanned: float = float("-inf")

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a rank ends."""
        if len(self._ends) < len(self.living):
            time.sleep(min(seconds, _BETWEEN_LOOKS))
            return
        waiting = select.poll()
        for descriptor in self._ends.values():
            waiting.register(descriptor, select.POLLIN)
        waiting.poll(1000 * seconds)

    def look(self) -> Changes:
        """What has changed since the last time. Ranks that went together are told together: nobody knows which was first."""
        gone = self._gone()
        if gone:
            # one may have ended before those that it brought down, and after it was looked at
            gone = self._gone()
        for rank in gone:
            del self.living[rank]
            if rank in self._ends:
                os.close(self._ends.pop(rank))
        seen = self.scan().seen if time.monotonic() - self._scanned > _SCAN_SECONDS else {}
        return Changes(seen=seen, gone=gone)

    def left(self) -> list[int]:
        """The ranks that still live."""
        return sorted(rank for rank, process in self.living.items() if not _is_over(process))

    def scan(self) -> Changes:
        """Look for ranks that were not there before."""
        self._scanned = time.monotonic()
        seen = {}
        for process in self.session.members():
            if process.pid in self._known:
                continue
            rank = _rank_of(process)
            if rank is None:
                continue
            self._known.add(process.pid)
            # what a rank starts inherits its variables
            if _parent_rank(process) is None and rank not in self.living:
                self.living[rank] = process
                seen[rank] = process.pid
                self._follow(rank, process.pid)
        return Changes(seen=seen, gone={})

    def _follow(self, rank: int, pid: int) -> None:
        try:
            self._ends[rank] = os.pidfd_open(pid)
        except (OSError, AttributeError):
            # it has ended already, or the kernel is older than Linux 5.3: it is looked at again and again
            return

    def _gone(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self.living.items() if _is_over(process)}


def _rank_of(process: psutil.Process) -> int | None:
    try:
        text = process.environ().get("RANK", "")
    except psutil.Error:
        return None
    return int(text) if text.isdigit() else None


def _parent_rank(process: psutil.Process) -> int | None:
    try:
        parent = process.parent()
    except psutil.Error:
        return None
    return None if parent is None else _rank_of(parent)


def _is_over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True
