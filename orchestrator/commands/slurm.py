"""``launch`` with ``launcher=slurm``: write the job's script, submit it, follow it to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.commands.result import HOST_NOT_READY, INTERRUPTED, OK, REFUSED, RUN_FAILED, CommandResult
from orchestrator.config.load import quoted
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.slurm.follow import follow
from orchestrator.launch.slurm.job import (
    Job,
    JobState,
    SlurmError,
    job_state,
    program_findings,
    read_job,
    submit,
    write_job,
)
from orchestrator.launch.slurm.script import JOB_SCRIPT, JobScript
from orchestrator.launch.transport import python_command
from orchestrator.report import text
from orchestrator.run_dir import CommandWords, newest_attempt, write_text
from orchestrator.tokens.sources import data_paths, is_there

Echo = Callable[[str], None]
Show = Callable[[Iterable[RenderableType]], None]

_MEANINGS = {
    "TIMEOUT": "the job reached its time limit before it had saved: launcher.slurm.save_seconds_before_limit is too short",
    "OUT_OF_MEMORY": "a process of the job was killed for want of memory: ask for more with launcher.slurm.options.mem",
    "NODE_FAIL": "a host of the job failed, and the job may not be requeued",
    "BOOT_FAIL": "a host of the job did not boot",
    "PREEMPTED": "another job took the hosts, and the job may not be requeued",
    "DEADLINE": "the job could not end before its deadline",
}


def require_no_job(run_dir: Path) -> None:
    """Make sure that no job of this run is waiting or running.

    Raises:
        ConfigurationError: there is one.
    """
    job = read_job(run_dir)
    try:
        state = job_state(job.job_id) if job is not None else None
    except SlurmError as problem:
        message = f"whether a job of {run_dir} is still there cannot be asked: {problem}"
        raise ConfigurationError([error("run-directory", "run_dir", message, "try again, or choose another run_dir")]) from None
    if job is not None and state is not None and not state.is_over:
        message = f"job {job.job_id} of {run_dir} is {state}"
        fix = f"follow it: orchestrator logs {run_dir} follow=true, end it: orchestrator stop {run_dir}, or another run_dir"
        raise ConfigurationError([error("run-directory", "run_dir", message, fix)])


def login_refusal(config: RunConfig) -> CommandResult | None:
    """Why no job can be submitted from here; None if one can. The hosts themselves are looked at in the allocation.

    A dry run only writes the script, which can be submitted elsewhere.
    """
    findings = [] if config.dry_run else program_findings()
    if config.preflight.enabled and not config.dry_run:
        fix = f"correct the path; if only the hosts of the job have it: dry_run=true, and sbatch {JOB_SCRIPT} by hand"
        findings += [
            error("data-file", option, f"{path} does not exist on this login node", fix)
            for option, path in data_paths(config.data).items()
            if not is_there(path)
        ]
    if not findings:
        return None
    payload = {"verdict": "host not ready", "findings": [finding.to_dict() for finding in findings]}
    return CommandResult(exit_code=HOST_NOT_READY, payload=payload, text=text.findings_report(findings))


def launch_job(config: RunConfig, words: CommandWords, echo: Echo, show: Show) -> CommandResult:
    """Write the script into run_dir, submit it unless this is a dry run, and follow the job unless it is detached.

    ``config`` has been planned, and every path in it is absolute.

    Raises:
        ConfigurationError: sbatch refused the job.
    """
    run_dir = Path(config.run_dir)
    script = JobScript(
        config=config,
        run_dir=run_dir,
        working_directory=Path.cwd(),
        program=python_command("orchestrator", "launch"),
        arguments=_arguments(config, words),
    )
    path = run_dir / JOB_SCRIPT
    write_text(path, script.text())
    show([Text(f"{path}:", style="bold"), Text(script.text())])
    if config.dry_run:
        payload = {"dry_run": True, "script": str(path), "text": script.text()}
        return CommandResult(exit_code=OK, payload=payload, text=[Text(f"dry run: nothing was submitted; sbatch {path}")])
    job = submit(path, script.output)
    write_job(run_dir, job)
    echo(f"job {job.job_id} is submitted; its output: {job.output}")
    if config.launcher.detach:
        return CommandResult(exit_code=OK, payload={"status": "submitted", **asdict(job)}, text=_goes_on(job, run_dir))
    try:
        state = follow(job, echo)
    except KeyboardInterrupt:
        payload = {"status": "detached", **asdict(job)}
        return CommandResult(exit_code=INTERRUPTED, payload=payload, text=_goes_on(job, run_dir))
    return ended(job, state, run_dir)


def _arguments(config: RunConfig, words: CommandWords) -> list[str]:
    """The words of this launch, which runs again in the job, finds itself in an allocation and starts there."""
    arguments = [f"run_dir={quoted(config.run_dir)}", *words.overrides, "launcher.detach=false"]
    if config.checkpoint.resume:
        arguments.append("checkpoint.resume=true")
    if words.config_dir is not None:
        arguments.append(f"--config-dir={words.config_dir}")
    return arguments


def _goes_on(job: Job, run_dir: Path) -> list[RenderableType]:
    return [
        Text(f"job {job.job_id} goes on by itself"),
        Text(f"    look at it: orchestrator status {run_dir}   (or squeue --jobs={job.job_id})"),
        Text(f"    follow it:  orchestrator logs {run_dir} follow=true   (or tail -f {job.output})"),
        Text(f"    end it:     orchestrator stop {run_dir}   (or scancel {job.job_id})"),
    ]


def ended(job: Job, state: JobState | None, run_dir: Path) -> CommandResult:
    """What a job that has ended comes to. Its own report has been printed by then."""
    attempt = newest_attempt(run_dir)
    result: dict[str, Any] | None = attempt.result if attempt is not None else None
    exit_code = _exit_code(state, has_result=result is not None)
    status = {OK: "completed", REFUSED: "refused", HOST_NOT_READY: "host not ready", INTERRUPTED: "interrupted"}
    reason = _MEANINGS.get(state.state, "") if state is not None else "Slurm has forgotten the job"
    payload = {
        "status": status.get(exit_code, "failed"),
        **asdict(job),
        "state": state.state if state is not None else None,
        "reason": reason,
        "attempt": str(attempt.path) if attempt is not None else None,
        "result": result,
    }
    report = (
        []
        if exit_code == OK
        else [Text(f"job {job.job_id}: {payload['status']}{reason and ': ' + reason}; its output: {job.output}")]
    )
    metric = result.get("metric") if exit_code == OK and result is not None else None
    return CommandResult(exit_code=exit_code, payload=payload, text=report, metric=metric)


def _exit_code(state: JobState | None, *, has_result: bool) -> int:
    """The exit code of the launch that ran in the job, as far as Slurm tells it."""
    if state is None:
        return OK if has_result else RUN_FAILED
    if state.state == "COMPLETED":
        return OK
    if state.state == "CANCELLED":
        return INTERRUPTED
    return state.exit_code if state.exit_code in (REFUSED, HOST_NOT_READY, INTERRUPTED) else RUN_FAILED
