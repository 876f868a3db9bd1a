"""How an attempt ended: one record for the command line, ``outcome.json`` and the table that people see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.launch.agent_link import AgentLink
from orchestrator.launch.ending.causes import CAUSES, EXCEPTION, Cause
from orchestrator.launch.ending.diagnosis import diagnose, end_of_log
from orchestrator.launch.ending.rank_outcome import RankOutcome, first_to_fail, rank_outcomes
from orchestrator.launch.ending.stacks import StackGroup
from orchestrator.launch.ending.status import Ending, Status, StoppedBy
from orchestrator.run_dir import LOG, RESULT, rank_failures, read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutcome:
    """How the launcher on a host ended; ``exit_code`` is None when nobody can say."""

    host: str
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    status: Status
    reason: str
    """One line for people."""
    stopped_by: StoppedBy | None = None
    saved: str | None = None
    """The checkpoint that was written because the run was to stop."""
    result: Mapping[str, Any] | None = None
    """What rank 0 left of a run that ended well, or was saved and stopped."""
    hosts: tuple[HostOutcome, ...] = ()
    ranks: tuple[RankOutcome, ...] = ()
    first: RankOutcome | None = None
    """The rank that failed before all others, where one is known."""
    lines: tuple[str, ...] = ()
    """Its last ones, or where none is known those of the log."""
    cause: str | None = None
    """A name of ``causes``, with its ``meaning`` and ``fix``."""
    meaning: str | None = None
    fix: str | None = None
    stacks: tuple[StackGroup, ...] = ()
    diagnosis: Mapping[str, Any] | None = None
    """What the log says (``explain``); None of a run that has not failed."""

    def to_dict(self) -> dict[str, Any]:
        """The content of ``outcome.json``."""
        return {**asdict(self), "stacks": [group.to_dict() for group in self.stacks]}


def outcome_of(attempt: Path, links: Sequence[AgentLink], ending: Ending | None) -> Outcome:
    """Judge an attempt of which nothing runs any more. ``ending`` is why the controller ended it; None: it ended by itself."""
    path = attempt / RESULT
    result = read_json(path) if path.exists() else None
    hosts = tuple(HostOutcome(host=link.host, exit_code=link.exit_code) for link in links)
    if ending is None and result is None:
        reason = "the launcher ended with exit code 0, but the workers left no result: they were killed from outside"
        ending = Ending(status=Status.failed, reason=reason)
    if ending is None or (ending.status is Status.interrupted and (result or {}).get("status") == "completed"):
        return Outcome(status=Status.completed, reason="the run has ended", result=result, hosts=hosts)
    if ending.status is Status.interrupted:
        saved = None if result is None else result["checkpoint"]
        return Outcome(
            status=ending.status, reason=ending.reason, stopped_by=ending.stopped_by, saved=saved, result=result, hosts=hosts
        )
    return _failed(attempt, links, ending, hosts)


def _failed(attempt: Path, links: Sequence[AgentLink], ending: Ending, hosts: tuple[HostOutcome, ...]) -> Outcome:
    log = end_of_log(attempt / LOG) if (attempt / LOG).exists() else []
    diagnosis = diagnose(log)
    failures = rank_failures(attempt)
    ranks = rank_outcomes(attempt, links, failures, log=log, stacks=ending.stacks)
    first = None if ending.is_explained else first_to_fail(ranks)
    found = diagnosis.first.cause if diagnosis.first is not None else None
    if first is not None and first.is_consequence and found is not None and not found.is_consequence:
        # the rank that started it could not say so, and the log knows more
        first = None
    own = next((failure for failure in failures if first is not None and failure["rank"] == first.rank), None)
    cause = _cause(first, found, ending)
    reason = ending.reason
    if first is not None:
        reason = f"rank {first.rank} on {first.host}: {first.meaning}"
    elif cause is not None and not ending.is_explained:
        # pdsh reports the hosts in the order in which their shells end, which need not be that of the failures
        shown = diagnosis.first.line.host if diagnosis.first is not None else None
        reason = f"{shown or ending.host}: {cause.meaning}"
    lines = [line.text for line in diagnosis.context] if own is None else str(own["traceback"]).rstrip().splitlines()
    return Outcome(
        status=ending.status,
        reason=reason,
        hosts=hosts,
        ranks=ranks,
        first=first,
        lines=() if ending.stacks else tuple(lines),
        cause=None if cause is None else cause.name,
        meaning=None if cause is None else cause.meaning,
        fix=None if cause is None else cause.fix,
        stacks=ending.stacks,
        diagnosis=diagnosis.to_dict(),
    )


def _cause(first: RankOutcome | None, found: Cause | None, ending: Ending) -> Cause | None:
    """What a fix is known for: of the first rank's failure, or of what the log shows beside an explained ending."""
    if first is not None and first.cause is not None:
        return next((cause for cause in (*CAUSES, EXCEPTION) if cause.name == first.cause), None)
    if ending.status is Status.hung or found is None or (ending.is_explained and found.is_consequence):
        return None
    return found
