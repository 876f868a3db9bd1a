"""Slurm as the orchestrator uses it: submit a job, look at it, cancel it, start it again, and the hosts of an allocation.

Every call goes through Slurm's own programs, which a test can replace on ``PATH``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.config.enums import Accelerator, LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.launch.slurm_script import own_variables
from orchestrator.planning.cluster_spec import Host
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job that this process runs in."""

    job_id: str
    host_list: str
    """As Slurm abbreviates them: ``gpu[1-4,7]``."""
    gpus_on_host: int | None
    """GPUs that the job has on this host; None where none were asked for."""
    visible_gpus: str
    """``CUDA_VISIBLE_DEVICES`` as Slurm sets it on this host; empty where it does not."""
    restarts: int
    """How often the job has been put back into the queue."""

    def hosts(self) -> list[str]:
        """The hosts by name, in Slurm's order.

        Raises:
            SlurmError: ``scontrol`` cannot be asked.
        """
        return _call("scontrol", "show", "hostnames", self.host_list).split()


def current_allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation that this process runs in: a batch job, ``salloc``, or a step of either; None outside of any."""
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        return None
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    return Allocation(
        job_id=environment["SLURM_JOB_ID"],
        host_list=environment["SLURM_JOB_NODELIST"],
        gpus_on_host=int(gpus) if gpus.isdigit() else None,
        visible_gpus=environment.get("CUDA_VISIBLE_DEVICES", ""),
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


def allocated_hosts(config: RunConfig) -> tuple[tuple[Host, ...] | None, list[Finding]]:
    """The hosts of the allocation for ``launcher=slurm``, and what is wrong with them; None where there is no allocation."""
    allocation = current_allocation()
    if config.launcher.backend is not LauncherBackend.slurm or allocation is None:
        return None, []
    slots = config.cluster.devices_per_host
    findings = list(_device_findings(config, allocation))
    if findings:
        return None, findings
    try:
        names = allocation.hosts()
    except SlurmError as problem:
        fix = "the programs of Slurm must be there on the hosts of a job as well"
        return None, [error("slurm-hosts", "launcher.backend", f"the hosts of job {allocation.job_id}: {problem}", fix)]
    return tuple(Host(name=name, slots=slots) for name in names), []


def _device_findings(config: RunConfig, allocation: Allocation) -> Iterator[Finding]:
    """Whether this host, the first of the job, has the devices that are configured, where DeepSpeed's launcher finds them."""
    slots, gpus, visible = config.cluster.devices_per_host, allocation.gpus_on_host, allocation.visible_gpus
    if config.cluster.accelerator is not Accelerator.cuda:
        return
    if gpus is not None and gpus < slots:
        message = f"job {allocation.job_id} has {gpus} GPUs on a host, and {slots} devices are configured"
        fix = f"cluster.devices_per_host={gpus}, or ask for more: launcher.slurm.options.gpus-per-node={slots}"
        yield error("slurm-devices", "cluster.devices_per_host", message, fix)
    elif visible and visible.split(",")[:slots] != [str(number) for number in range(slots)]:
        message = (
            f"job {allocation.job_id} has the GPUs {visible} of this host, which shows it the others as well, and DeepSpeed's"
            " launcher counts from 0: it would take those of another job"
        )
        fix = "take whole hosts (no gres, gpus, cpus or mem in launcher.slurm.options), or have Slurm set up to hide the others"
        yield error("slurm-devices", "CUDA_VISIBLE_DEVICES", message, fix)


def submits_a_job(config: RunConfig) -> bool:
    """Whether a launch of ``config`` submits a job; inside an allocation it starts there."""
    return config.launcher.backend is LauncherBackend.slurm and current_allocation() is None


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
        printed = _call("sbatch", "--parsable", str(script), environment=own_variables(os.environ))
    except SlurmError as problem:
        fix = "correct launcher.slurm.options; man sbatch has what each option takes, sinfo what this cluster has"
        raise ConfigurationError([error("slurm-submit", "launcher.slurm.options", f"sbatch says: {problem}", fix)]) from None
    # the number, and behind a semicolon the cluster's name where there are several
    job_id = printed.strip().splitlines()[-1].partition(";")[0]
    output = output.replace("%%", "%").replace("%j", job_id)
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
        return parse_job(_call("scontrol", "--oneliner", "show", "job", job_id))
    except SlurmError as problem:
        if _NO_SUCH_JOB in str(problem):
            return None
        raise


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
        _call("scancel", job_id)
    except SlurmError as problem:
        if _NO_SUCH_JOB not in str(problem):
            raise


def requeue(job_id: str) -> None:
    """Put a running job back into the queue. Its processes are ended, the caller's among them.

    Raises:
        SlurmError: Slurm does not answer, or the site does not allow it.
    """
    _call("scontrol", "requeue", job_id)


def _call(*argv: str, environment: Mapping[str, str] | None = None) -> str:
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
