"""A run of a Slurm job over several starts of it: back into the queue before the time limit, and on from what was saved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.checkpoints.catalogue import newest
from orchestrator.config.enums import LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.status import StoppedBy
from orchestrator.launch.slurm.allocation import current_allocation
from orchestrator.launch.slurm.job import SlurmError, batch_job, read_job, requeue, write_job
from orchestrator.run_dir import checkpoint_dir

REQUEUE_SECONDS = 60.0
"""So long Slurm may take to end a job that it has put back into the queue."""


def keep_job(config: RunConfig) -> None:
    """Write down the job that this launch starts a run in, if it was not submitted by one: its next start then goes on."""
    allocation, run_dir = current_allocation(), Path(config.run_dir)
    if config.launcher.backend is not LauncherBackend.slurm or allocation is None:
        return
    known = read_job(run_dir)
    if known is None or known.job_id != allocation.job_id:
        job = batch_job(allocation.job_id)
        if job is not None:
            write_job(run_dir, job)


def is_started_again(config: RunConfig) -> bool:
    """Whether this process runs in the job that this run was started in, and not for the first time."""
    if config.launcher.backend is not LauncherBackend.slurm:
        return False
    allocation, job = current_allocation(), read_job(Path(config.run_dir))
    return allocation is not None and job is not None and job.job_id == allocation.job_id and allocation.restarts > 0


def goes_on(config: RunConfig) -> bool:
    """Whether a job that was started again has a checkpoint to go on from."""
    return is_started_again(config) and newest(checkpoint_dir(Path(config.run_dir))) is not None


def requeue_if_due(config: RunConfig, outcome: Outcome, resume_tag: str | None, echo: Callable[[str], None]) -> None:
    """Put the job of a run that its time limit has stopped back into the queue. That ends this process.

    ``resume_tag`` is the checkpoint this start came from. One that has saved nothing newer is not repeated: the next would
    come no further.
    """
    allocation = current_allocation()
    wanted = config.launcher.backend is LauncherBackend.slurm and config.launcher.slurm.requeue
    if allocation is None or not wanted or outcome.stopped_by is not StoppedBy.time_limit:
        return
    saved = _newly_saved(config, outcome, resume_tag)
    if saved is None:
        echo(f"job {allocation.job_id} is not requeued: this start has saved nothing new, and the next would come no further")
        return
    echo(f"job {allocation.job_id} goes back into the queue; its next start goes on from {saved}")
    try:
        requeue(allocation.job_id)
    except SlurmError as problem:
        echo(f"job {allocation.job_id} cannot be requeued: {problem}; go on with checkpoint.resume=true")
        return
    # the end comes with Slurm's SIGTERM; leaving before would end the job
    time.sleep(REQUEUE_SECONDS)


def _newly_saved(config: RunConfig, outcome: Outcome, resume_tag: str | None) -> str | None:
    """The checkpoint that this start has added; of a script of the user's own the one that it has reported."""
    if config.training.script:
        return outcome.saved
    saved = newest(checkpoint_dir(Path(config.run_dir)))
    return None if saved is None or saved.tag == resume_tag else saved.tag
