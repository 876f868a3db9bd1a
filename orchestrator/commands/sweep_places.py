"""Where a sweep's points lie, and how those stand that an earlier start of it has left."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.commands import slurm
from orchestrator.commands.objective import ObjectiveError, objective
from orchestrator.commands.result import INTERRUPTED, OK, RUN_FAILED
from orchestrator.control import read_controller, read_outcome
from orchestrator.errors import ConfigurationError
from orchestrator.launch.ending.status import Status
from orchestrator.launch.locks import is_locked
from orchestrator.lease import renewed
from orchestrator.run_dir import newest_started
from orchestrator.sweep_point import PointStatus, SweepPoint, read_points

LOCKS = ".locks"
"""In a sweep's directory: a file for each configuration, locked while it is run; none is ever run twice at once."""


def lock_of(sweep_dir: Path, identity: str) -> Path:
    """What is locked while the configuration with that hash is run."""
    return sweep_dir / LOCKS / identity


def place_of(sweep_dir: Path, identity: str, job: int, reserved: Path) -> tuple[Path, int, SweepPoint | None]:
    """Directory, number and earlier record of the point with that hash.

    A new one gets the directory ``reserved`` by Hydra for its job and the job's number, unless another configuration has
    them: then the next number that is free.
    """
    points = read_points(sweep_dir)
    for directory, point in points.items():
        if point.config_hash == identity:
            return directory, point.number, point
    name = os.path.relpath(reserved, sweep_dir).replace("/", "_")
    taken = {point.number for point in points.values()}
    number = job if job not in taken else max(taken) + 1
    while True:
        own = name if number == job else str(number) if name == str(job) else f"{name}_{number}"
        directory = sweep_dir / own
        if directory not in points and not (directory.is_dir() and any(directory.iterdir())):
            return directory, number, None
        number = max(taken | {number}) + 1


def settled(directory: Path, point: SweepPoint, metric: str | None) -> SweepPoint:
    """An earlier record as it stands now: what its run has left decides where the process that wrote it was killed.

    The caller holds the point's lock, so that no such process lives; a run that was handed over may still go on.
    """
    if point.status is PointStatus.infeasible:
        return point
    if point.status is PointStatus.finished and metric in (None, point.metric_name):
        return point
    attempt = newest_started(directory)
    outcome = {} if attempt is None else read_outcome(attempt.path) or {}
    ended = point.ended or time.time()
    if outcome.get("status") == Status.completed:
        return with_objective(replace(point, exit_code=OK, ended=ended), directory, metric)
    if point.status in (PointStatus.running, PointStatus.interrupted) and _is_handed_over(directory):
        return replace(point, status=PointStatus.running, reason=None, exit_code=None, ended=None)
    if point.status is not PointStatus.running:
        return point
    if outcome:
        is_interrupted = outcome.get("status") == Status.interrupted
        status, code = (PointStatus.interrupted, INTERRUPTED) if is_interrupted else (PointStatus.failed, RUN_FAILED)
        return replace(point, status=status, reason=reason_of(outcome), exit_code=code, ended=ended)
    reason = "the process that ran it was killed"
    return replace(point, status=PointStatus.interrupted, reason=reason, exit_code=INTERRUPTED, ended=ended)


def settle_all(sweep_dir: Path, metric: str | None) -> None:
    """Correct the records of points whose processes were killed; those that somebody works on stay as they are."""
    for directory, point in read_points(sweep_dir).items():
        if not is_locked(lock_of(sweep_dir, point.config_hash)):
            now = settled(directory, point, metric)
            if now != point:
                now.write(directory)


def reason_of(outcome: Mapping[str, Any]) -> str:
    """Why a run has ended as it did, with the last thing it said."""
    said = [line.strip() for line in outcome.get("lines") or () if line.strip()]
    return "; its last line: ".join([str(outcome["reason"]), *said[-1:]])


def with_objective(point: SweepPoint, directory: Path, metric: str | None) -> SweepPoint:
    """The record of a run that has ended well: finished with its objective, or failed for lack of it."""
    try:
        name, value = objective(directory, metric)
    except ObjectiveError as problem:
        return replace(point, status=PointStatus.failed, reason=str(problem), metric=None, metric_name=metric)
    return replace(point, status=PointStatus.finished, reason=None, metric=value, metric_name=name)


def _is_handed_over(directory: Path) -> bool:
    """Whether a controller elsewhere, or a Slurm job, has the run."""
    attempt = newest_started(directory)
    controller = None if attempt is None else read_controller(attempt.path)
    if attempt is not None and controller is not None and controller.detached:
        return attempt.path in renewed([attempt.path])
    try:
        slurm.require_no_job(directory)
    except ConfigurationError:
        return True
    return False
