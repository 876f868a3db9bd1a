"""A Slurm job of a run: submit it, look at it, cancel it, put it back into the queue.

Every call goes through Slurm's own programs, which a test can replace on ``PATH``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.launch.slurm.script import own_variables
from orchestrator.run_dir import read_json, write_json

JOB_RECORD = "slurm.json"
_CALL_SECONDS = 60.0
"""A busy controller answers late; srun and sbatch themselves try again for about as long."""
_NO_SUCH_JOB = "Invalid job id"
_OVER = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


class SlurmError(Exception):
    """A program of Slurm failed; the text is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that was submitted for a run. ``output`` has everything that it prints."""

    job_id: str
    script: str
    output: str
    submitted: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What Slurm says of a job."""

    state: str
    """As Slurm writes it: PENDING, RUNNING, COMPLETING, COMPLETED, CANCELLED, ..."""
    reason: str
    """Why it waits or how it ended; ``None`` in Slurm's own words is nothing."""
    hosts: str
    """Its hosts as Slurm abbreviates them; empty before it has any."""
    exit_code: int
    """Of the script; 128 + N when signal N ended it."""
    restarts: int

    @property
    def is_over(self) -> bool:
        """Whether it will not run any more."""
        return self.state in _OVER

    @property
    def is_waiting(self) -> bool:
        """Whether it has not started yet, or waits to start again."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")

    def __str__(self) -> str:
        """The state for people, with why it waits or where it runs."""
        if self.is_waiting:
            return f"{self.state} ({self.reason})" if self.reason else self.state
        return f"{self.state} on {self.hosts}" if self.hosts else self.state


def program_findings() -> list[Finding]:
    """Whether jobs can be submitted from here."""
    if shutil.which("sbatch") is not None:
        return []
    message = "sbatch is not on PATH: this is no login node of a Slurm cluster, or its module is not loaded"
    return [error("slurm-programs", "launcher.backend", message, "launch on a login node, or use launcher=ssh with a hostfile")]


def submit(script: Path, output: str) -> Job:
    """Submit the job; ``output`` has ``%j`` for its number.

    Raises:
        ConfigurationError: sbatch refused it; the finding has its words.
    """
    try:
        printed = call_slurm("sbatch", "--parsable", str(script), environment=own_variables(os.environ))
    except SlurmError as problem:
        fix = "correct launcher.slurm.options; man sbatch has what each option takes, sinfo what this cluster has"
        raise ConfigurationError([error("slurm-submit", "launcher.slurm.options", f"sbatch says: {problem}", fix)]) from None
    # the number, and behind a semicolon the cluster's name where there are several
    job_id = printed.strip().splitlines()[-1].partition(";")[0]
    output = re.sub("%[%j]", lambda pattern: "%" if pattern[0] == "%%" else job_id, output)
    return Job(job_id=job_id, script=str(script), output=output, submitted=time.time())


def write_job(run_dir: Path, job: Job) -> None:
    """Keep the job of a run, so that it can be followed and cancelled before its first attempt."""
    write_json(run_dir / JOB_RECORD, asdict(job))


def read_job(run_dir: Path) -> Job | None:
    """The job that was submitted last for a run; None if there was none."""
    try:
        return Job(**read_json(run_dir / JOB_RECORD))
    except (OSError, ValueError, TypeError):
        return None


def job_state(job_id: str) -> JobState | None:
    """What Slurm says of a job; None once it has forgotten it, some minutes after its end.

    Raises:
        SlurmError: Slurm does not answer.
    """
    try:
        return parse_job(call_slurm("scontrol", "--oneliner", "show", "job", job_id))
    except SlurmError as problem:
        if _NO_SUCH_JOB in str(problem):
            return None
        raise


def batch_job(job_id: str) -> Job | None:
    """A job that somebody else has submitted with sbatch; None for an interactive one, and where Slurm cannot be asked."""
    try:
        shown = call_slurm("scontrol", "show", "job", job_id)
    except SlurmError:
        return None
    # a value may have spaces, and ends with its line
    values = dict(re.findall(r"^\s*(Command|StdOut)=(.*?)\s*$", shown, re.MULTILINE))
    if values.keys() != {"Command", "StdOut"}:
        return None
    return Job(job_id=job_id, script=values["Command"], output=values["StdOut"], submitted=time.time())


def parse_job(shown: str) -> JobState:
    """The state in what ``scontrol --oneliner show job`` prints."""
    values: dict[str, str] = {}
    for word in shown.split():
        name, _, value = word.partition("=")
        # a comment or a command line may have words like these: the job's own come first
        values.setdefault(name, value)
    status, _, number = values.get("ExitCode", "0:0").partition(":")
    return JobState(
        state=values.get("JobState", "UNKNOWN"),
        reason="" if values.get("Reason") in (None, "None") else values["Reason"],
        hosts="" if values.get("NodeList") in (None, "(null)") else values["NodeList"],
        exit_code=128 + int(number) if number not in ("", "0") else int(status),
        restarts=int(values.get("Restarts", "0")),
    )


def cancel(job_id: str) -> None:
    """End a job, waiting or running: its processes get SIGTERM, and SIGKILL after the site's ``KillWait``.

    Raises:
        SlurmError: Slurm does not answer, or does not let this user.
    """
    try:
        call_slurm("scancel", job_id)
    except SlurmError as problem:
        if _NO_SUCH_JOB not in str(problem):
            raise


def requeue(job_id: str) -> None:
    """Put a running job back into the queue. Its processes are ended, the caller's among them.

    Raises:
        SlurmError: Slurm does not answer, or the site does not allow it.
    """
    call_slurm("scontrol", "requeue", job_id)


def call_slurm(*argv: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of a program of Slurm.

    Raises:
        SlurmError: it is missing, gives no answer, or refuses; with its words.
    """
    try:
        ended = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not on PATH") from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SlurmError(f"{argv[0]}: {problem}") from None
    if ended.returncode != 0:
        words = [
            line.removeprefix(f"{argv[0]}: ").removeprefix("error: ") for line in ended.stderr.splitlines() if line.strip()
        ]
        raise SlurmError("; ".join(words) or f"{argv[0]} ended with exit code {ended.returncode}")
    return ended.stdout
