"""What became of each rank, from what it wrote, what its agent saw and what DeepSpeed's node launcher said."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.launch.agent_link import AgentLink, RankSighting
from orchestrator.launch.ending.causes import EXCEPTION
from orchestrator.launch.ending.diagnosis import cause_of
from orchestrator.launch.ending.stacks import StackGroup
from orchestrator.launch.processes import meaning, signal_of
from orchestrator.lease import OVER_EXIT_CODE
from orchestrator.presence import read_ranks
from orchestrator.run_dir import LOG

_FINISHED = re.compile(r"^(?:(\S+): )?\[.*\] Process (\d+) exits successfully")
_KILLED = re.compile(r"^(\S+): \[.*\] exits with return code = -(\d+)$")
"""What DeepSpeed's node launcher says through pdsh of the rank whose end it saw first."""
_CONSEQUENCES = (signal.SIGTERM, signal.SIGABRT)
"""NCCL's watchdog aborts ranks whose peers have gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """What became of a rank. ``exit_code`` is -N after signal N, and None where nobody knows it."""

    rank: int
    host: str
    exit_code: int | None
    meaning: str
    cause: str | None = None
    """A name of ``causes``."""
    failed: float | None = None
    """When it failed, seconds since the epoch; None if it only ended with the others."""
    is_consequence: bool = False
    """Whether it failed because another one had."""


def rank_outcomes(
    attempt: Path,
    links: Sequence[AgentLink],
    failures: Sequence[Mapping[str, Any]],
    *,
    log: Sequence[str],
    stacks: Sequence[StackGroup],
) -> tuple[RankOutcome, ...]:
    """What became of every rank that was seen, by number."""
    places = {record.rank: record.host for record in read_ranks(attempt)}
    seen = {rank: (link, sighting) for link in links for rank, sighting in link.ranks.items()}
    reports = {int(failure["rank"]): failure for failure in failures}
    finished = {(match[1] or links[0].host, int(match[2])) for match in map(_FINISHED.match, log) if match}
    killed = {match[1]: int(match[2]) for match in map(_KILLED.match, reversed(log)) if match}
    alone = {host for host in killed if list(places.values()).count(host) == 1}
    outcomes = []
    for rank in sorted({*places, *seen, *reports}):
        link, sighting = seen.get(rank, (None, None))
        host = link.host if link is not None and len(links) > 1 else places.get(rank, "")
        if rank in reports:
            outcomes.append(_reported(rank, host or str(reports[rank]["host"]), reports[rank]))
        elif link is not None and sighting is not None and (link.host, sighting.pid) in finished:
            outcomes.append(RankOutcome(rank=rank, host=host, exit_code=0, meaning="ended well"))
        elif link is not None and sighting is not None and _went_first(link, sighting, finished):
            outcomes.append(_ended_silently(rank, host, link, sighting, reported=set(reports)))
        elif link is None and host in alone:
            outcomes.append(_ended_by_signal(rank, host, killed[host], failed=(attempt / LOG).stat().st_mtime))
        else:
            told = _not_blamed(rank, link, stacks)
            outcomes.append(RankOutcome(rank=rank, host=host, exit_code=None, meaning=told))
    return tuple(outcomes)


def first_to_fail(ranks: Sequence[RankOutcome]) -> RankOutcome | None:
    """The rank whose failure came before all others; one that only lost another rank counts if there is nothing else."""
    failed = [(rank.is_consequence, rank.failed, rank.rank, rank) for rank in ranks if rank.failed is not None]
    return min(failed)[-1] if failed else None


def _reported(rank: int, host: str, report: Mapping[str, Any]) -> RankOutcome:
    """A rank that has said itself why it failed."""
    cause = cause_of(str(report["traceback"]).splitlines()) or EXCEPTION
    return RankOutcome(
        rank=rank,
        host=host,
        exit_code=1,
        meaning=str(report["error"]),
        cause=cause.name,
        failed=float(report["time"]),
        is_consequence=cause.is_consequence,
    )


def _went_first(link: AgentLink, sighting: RankSighting, finished: set[tuple[str, int]]) -> bool:
    """Whether a rank was the first of its host to go, before anybody had asked for it."""
    if not link.exit_code or sighting.gone is None or (link.stopped is not None and sighting.gone >= link.stopped):
        return False
    times = [other.gone for other in link.ranks.values() if other.gone is not None and (link.host, other.pid) not in finished]
    return sighting.gone == min(times)


def _ended_silently(rank: int, host: str, link: AgentLink, sighting: RankSighting, *, reported: set[int]) -> RankOutcome:
    """A rank that ended without a word.

    The node launcher's exit code is its own, unless another one could fail because of it, and leave a report, before the
    launcher looked, or the launcher itself was stopped before it could say.
    """
    assert link.exit_code is not None and link.exited is not None
    number = None if link.exited["asked"] else signal_of(link.exit_code)
    is_unsaid = number is None and (link.exited["asked"] or bool(reported & link.ranks.keys()))
    code = None if is_unsaid else link.exit_code if number is None else -number
    if code is None:
        told = "vanished without a word: most likely killed (SIGKILL) by the host's out-of-memory killer"
    elif code == OVER_EXIT_CODE:
        told = "ended because its lease was over: the run directory could not be read or written in time"
    elif number is None:
        told = f"ended with exit code {code} and left no report"
    else:
        told = meaning(link.exit_code)
    cause = cause_of([f"exits with return code = {-signal.SIGKILL if code is None else code}"])
    return RankOutcome(
        rank=rank,
        host=host,
        exit_code=code,
        meaning=told,
        cause=None if cause is None else cause.name,
        failed=sighting.gone,
        is_consequence=number in _CONSEQUENCES,
    )


def _ended_by_signal(rank: int, host: str, number: int, *, failed: float) -> RankOutcome:
    """The only rank of a host, through pdsh, of which nothing but the signal is known."""
    cause = cause_of([f"exits with return code = {-number}"])
    return RankOutcome(
        rank=rank,
        host=host,
        exit_code=-number,
        meaning=meaning(-number),
        cause=None if cause is None else cause.name,
        failed=failed,
        is_consequence=number in _CONSEQUENCES,
    )


def _not_blamed(rank: int, link: AgentLink | None, stacks: Sequence[StackGroup]) -> str:
    if link is not None and link.exited is None:
        return "not known: its host, or the link to it, was lost"
    if link is not None and rank in link.ranks_left:
        return "outlived its node launcher, and was ended"
    if not stacks:
        return "ended with the run"
    standing = next((group for group in stacks if rank in group.ranks), None)
    return "gave no stack" if standing is None else f"stood in {standing.place}"
