"""Why a job failed, read from its log: the rank that failed first, before the noise of those that lost it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.launch.ending.causes import CAUSES, EXCEPTION, WARNING, Cause
from orchestrator.units import MIB

CONTEXT_LINES = 15
MOST_BYTES = 64 * MIB
"""What is read of a longer log: its end, where failures are."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"^\s*\[(?:rank)?(\d+)\]:\s?")
_STAMPED = re.compile(r"^([A-Za-z0-9][\w.-]*): \[\d{4}-\d\d-\d\d ")
"""A line of DeepSpeed's node launcher behind the host name that pdsh puts before it."""
_EXIT = re.compile(r"(?:return code = |exitcode\s*: )(-?\d+)")
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log without its prefixes; ``number`` counts from 1."""

    number: int
    host: str | None
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A cause where a line shows it."""

    cause: Cause
    line: LogLine

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``others``."""
        return {
            "cause": self.cause.name,
            "line": self.line.number,
            "host": self.line.host,
            "rank": self.line.rank,
            "text": self.line.text.strip(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a log says of a failure.

    ``first`` is the occurrence that started it (``None``: nothing known was found), ``context`` the last lines of its rank up
    to there, or the end of the log. ``others`` are the first occurrences on other ranks and of other causes.
    """

    first: Occurrence | None
    others: tuple[Occurrence, ...]
    context: tuple[LogLine, ...]
    exit_code: int | None

    def to_dict(self) -> dict[str, Any]:
        """The object of ``output=json``."""
        first = self.first
        return {
            "verdict": "explained" if first is not None else "unexplained",
            "cause": None if first is None else first.cause.name,
            "meaning": None if first is None else first.cause.meaning,
            "fix": None if first is None else first.cause.fix,
            "host": None if first is None else first.line.host,
            "rank": None if first is None else first.line.rank,
            "line": None if first is None else first.line.number,
            "exit_code": self.exit_code,
            "lines": [line.text for line in self.context],
            "others": [occurrence.to_dict() for occurrence in self.others],
        }


def diagnose(log: Iterable[str]) -> Diagnosis:
    """Find out why the job that printed ``log`` failed.

    A consequence (a lost peer, a timeout) counts only if there is nothing else, and of causes the earliest.
    """
    lines = _lines(log)
    found = list(_occurrences(lines))
    found.sort(key=lambda occurrence: (occurrence.cause.is_consequence, occurrence.line.number))
    first = found[0] if found else None
    exits = [int(match[1]) for match in (_EXIT.search(line.text) for line in lines) if match]
    return Diagnosis(
        first=first,
        others=_others(found),
        context=_context(lines, first),
        exit_code=exits[0] if exits else None,
    )


def cause_of(lines: Iterable[str]) -> Cause | None:
    """The cause that a rank's own words show: its last, unless that is only a consequence of another of them."""
    shown = [cause for line in lines for cause in CAUSES if cause.pattern.search(line)]
    return next((cause for cause in shown if not cause.is_consequence), shown[0] if shown else None)


def end_of_log(path: Path) -> list[str]:
    """The lines of a log, of a long one the last.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:  # never of a pipe, which cannot be wound
            file.seek(size - MOST_BYTES)
        return file.read(MOST_BYTES).decode("utf-8", errors="replace").splitlines()


def _lines(log: Iterable[str]) -> list[LogLine]:
    plain = [_ANSI.sub("", line.rstrip("\n")).replace("\r", "") for line in log]
    hosts = {match[1] for match in map(_STAMPED.match, plain) if match}
    lines = []
    for number, text in enumerate(plain, 1):
        host, rank = None, None
        name, separator, rest = text.partition(": ")
        if separator and name in hosts:
            host, text = name, rest
        if match := _RANK.match(text):
            rank, text = int(match[1]), text[match.end() :]
        lines.append(LogLine(number=number, host=host, rank=rank, text=text))
    return lines


def _occurrences(lines: Sequence[LogLine]) -> Iterable[Occurrence]:
    """Every line that shows a cause; an exception that is not known only at the end of a traceback."""
    in_traceback: set[tuple[str | None, int | None]] = set()
    for line in lines:
        source = (line.host, line.rank)
        if _TRACEBACK in line.text:
            in_traceback.add(source)
            continue
        if WARNING.search(line.text):
            continue
        cause = next((cause for cause in CAUSES if cause.pattern.search(line.text)), None)
        ends = source in in_traceback and EXCEPTION.pattern.match(line.text) is not None
        if cause is not None:
            yield Occurrence(cause=cause, line=line)
        elif ends:
            yield Occurrence(cause=EXCEPTION, line=line)
        if ends:
            in_traceback.discard(source)


def _others(found: Sequence[Occurrence]) -> tuple[Occurrence, ...]:
    """One occurrence for each further rank or cause."""
    known: set[tuple[str, str | None, int | None]] = set()
    others = []
    for occurrence in found:
        key = (occurrence.cause.name, occurrence.line.host, occurrence.line.rank)
        if key not in known:
            known.add(key)
            others.append(occurrence)
    return tuple(others[1:])


def _context(lines: Sequence[LogLine], first: Occurrence | None) -> tuple[LogLine, ...]:
    if first is None:
        return tuple(lines[-CONTEXT_LINES:])
    own = [line for line in lines[: first.line.number] if (line.host, line.rank) == (first.line.host, first.line.rank)]
    return tuple(own[-CONTEXT_LINES:])
