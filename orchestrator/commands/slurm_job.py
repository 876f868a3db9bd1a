"""``status``, ``logs`` and ``stop`` of a run whose Slurm job has something to say that no attempt can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from orchestrator.commands.result import OK, RUN_FAILED, CommandResult
from orchestrator.config.enums import Command, Output
from orchestrator.config.schema import RunConfig
from orchestrator.control import read_controller
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.slurm.follow import follow
from orchestrator.launch.slurm.job import Job, JobState, SlurmError, cancel, job_state, read_job
from orchestrator.run_dir import newest_attempt

Echo = Callable[[str], None]


def answer(command: Command, config: RunConfig, run_dir: Path, echo: Echo) -> CommandResult | None:
    """What ``command`` comes to for a job that waits, starts, or has left no attempt; None where the newest attempt answers.

    Raises:
        ConfigurationError: the job cannot be cancelled.
    """
    job = read_job(run_dir)
    if job is None:
        return None
    try:
        state = job_state(job.job_id)
    except SlurmError as problem:
        # away from the cluster the files of the run still answer
        echo(f"job {job.job_id}: Slurm cannot be asked ({problem})")
        return None
    attempt = newest_attempt(run_dir)
    has_controller = attempt is not None and (record := read_controller(attempt.path)) is not None and not record.has_ended
    if state is None or (has_controller and not state.is_waiting) or (state.is_over and attempt is not None):
        return None
    if command is Command.logs and config.follow and config.output is Output.text and not state.is_over:
        return _followed(job, state, echo)
    if command is Command.logs:
        return _output(job, state, last=config.last)
    if command is Command.stop and not state.is_over:
        return _cancelled(job, state)
    exit_code = RUN_FAILED if state.is_over and state.state != "CANCELLED" else OK
    text = [Text(f"job {job.job_id}: {state}"), Text(f"its output: {job.output}")]
    return CommandResult(exit_code=exit_code, payload=_payload(job, state), text=text)


def _followed(job: Job, state: JobState, echo: Echo) -> CommandResult:
    try:
        state = follow(job, echo) or state
    except KeyboardInterrupt:
        return CommandResult(
            exit_code=OK, payload=_payload(job, state), text=[Text("the job goes on; orchestrator stop ends it")]
        )
    is_bad = state.state not in ("COMPLETED", "CANCELLED")
    return CommandResult(exit_code=RUN_FAILED if is_bad else OK, payload=_payload(job, state), text=[])


def _output(job: Job, state: JobState, *, last: int) -> CommandResult:
    """What the job has printed so far: of one that was refused in its allocation there is nothing else."""
    path = Path(job.output)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    lines = lines[-last:] if last else lines
    text = [*map(Text, lines), Text(f"job {job.job_id}: {state}")]
    return CommandResult(exit_code=OK, payload={**_payload(job, state), "lines": lines}, text=text)


def _cancelled(job: Job, state: JobState) -> CommandResult:
    try:
        cancel(job.job_id)
    except SlurmError as problem:
        message = f"job {job.job_id} cannot be cancelled: {problem}"
        raise ConfigurationError([error("stop", "run_dir", message, f"as its user: scancel {job.job_id}")]) from None
    text = [Text(f"job {job.job_id} was {state}, and is cancelled", style="bold")]
    return CommandResult(exit_code=OK, payload={**_payload(job, state), "state": "CANCELLED"}, text=text)


def _payload(job: Job, state: JobState) -> dict[str, object]:
    return {**asdict(job), "state": state.state, "reason": state.reason, "hosts": state.hosts}
