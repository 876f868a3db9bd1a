"""What ranks leave in the attempt's directory while they run: where each of them is, and how far the run has come.

::

    ranks/N.json    written by rank N at its start
    progress        written in place by rank 0, and by the rank that makes the tokens, whenever the run has come further
    stacks/N.txt    the stacks of rank N, when they were asked for
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator.run_dir import read_json, write_json

RANKS = "ranks"
PROGRESS = "progress"
STACKS = "stacks"
_RECORD = "{beat:<12d} {step:<12d} {phase:<20s}\n"


class Phase(StrEnum):
    """What a run does."""

    start = "start"
    data = "data"
    build = "build"
    resume = "resume"
    script = "script"
    """A script of the user's own, which has not shown that it saves when it is asked to stop."""
    train = "train"
    evaluate = "evaluate"
    save = "save"
    end = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """Where a rank runs."""

    rank: int
    local_rank: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come: ``step`` optimizer steps, and what it does now.

    ``beat`` changes with every sign of progress, and does not always grow: the rank that makes the tokens writes too.
    """

    beat: int
    step: int
    phase: Phase


class ProgressWriter:
    """The workers' side. Writing never fails a training, nor makes it wait: a full disk is reported by what needs it.

    On a network disk others see what was written up to half a minute later.
    """

    def __init__(self, attempt: Path) -> None:
        self._beat = 0
        self._file = os.open(attempt / PROGRESS, os.O_CREAT | os.O_WRONLY, 0o644)

    def advance(self, phase: Phase, *, step: int) -> None:
        """Say that the run has come to ``phase`` after ``step`` steps."""
        self._beat += 1
        try:
            os.pwrite(self._file, _RECORD.format(beat=self._beat, step=step, phase=phase).encode(), 0)
        except OSError:
            return


def read_progress(attempt: Path) -> Progress | None:
    """How far the run has come; None before its first sign."""
    try:
        beat, step, phase = (attempt / PROGRESS).read_text(encoding="ascii").split()
        return Progress(beat=int(beat), step=int(step), phase=Phase(phase))
    except (OSError, ValueError):
        return None


def write_rank(attempt: Path, record: RankRecord) -> None:
    """Say where this rank runs."""
    write_json(attempt / RANKS / f"{record.rank}.json", asdict(record))


def read_ranks(attempt: Path) -> list[RankRecord]:
    """The ranks that have started, by number; a record that cannot be read, on a disk in trouble, is left out."""
    records = []
    for path in (attempt / RANKS).glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            records.append(RankRecord(**read_json(path)))
    return sorted(records, key=lambda record: record.rank)
