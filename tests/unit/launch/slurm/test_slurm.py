from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.config.load import load_config
from orchestrator.errors import ConfigurationError
from orchestrator.launch.slurm.allocation import allocated_hosts, current_allocation
from orchestrator.launch.slurm.job import (
    SlurmError,
    batch_job,
    cancel,
    job_state,
    parse_job,
    program_findings,
    submit,
)

RUNNING = (
    "JobId=7 JobName=demo UserId=me(1000) Priority=1 JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2"
    " ExitCode=0:0 RunTime=00:01:40 NodeList=gpu[1-2] BatchHost=gpu1 Comment=JobState=FAILED Reason=mine"
)
PENDING = "JobId=8 JobName=demo JobState=PENDING Reason=Resources Restarts=0 ExitCode=0:0 NodeList=(null)"
CANCELLED = "JobId=9 JobName=demo JobState=CANCELLED Reason=None Restarts=0 ExitCode=0:15 NodeList=gpu1"


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH, for programs that stand for Slurm's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize(
    ("shown", "told"), [(RUNNING, "RUNNING on gpu[1-2]"), (PENDING, "PENDING (Resources)"), (CANCELLED, "CANCELLED on gpu1")]
)
def test_a_state_is_told_with_its_reason_or_its_hosts(shown: str, told: str) -> None:
    assert str(parse_job(shown)) == told


def test_what_slurm_shows_of_a_job_is_read() -> None:
    running, pending, cancelled = map(parse_job, (RUNNING, PENDING, CANCELLED))
    assert (running.restarts, running.is_over, running.is_waiting) == (2, False, False)
    assert (pending.is_over, pending.is_waiting) == (False, True)
    assert (cancelled.is_over, cancelled.exit_code) == (True, 128 + 15)


def test_a_job_that_slurm_has_forgotten_is_none(programs: Path) -> None:
    program(programs, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(programs, "scancel", "echo 'scancel: error: Kill job error on job id 7: Invalid job id specified' >&2; exit 1")
    assert job_state("7") is None
    cancel("7")


def test_a_controller_that_does_not_answer_is_an_error_with_its_words(programs: Path) -> None:
    program(programs, "scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        job_state("7")


def test_a_job_that_was_submitted_by_hand_is_found_with_its_output(programs: Path) -> None:
    program(
        programs,
        "scontrol",
        "printf 'JobId=7 JobName=mine\\n   Command=/a b/job --x=1\\n   StdErr=/a b/err\\n   StdOut=/a b/out\\n'",
    )
    job = batch_job("7")
    assert job is not None and (job.script, job.output) == ("/a b/job --x=1", "/a b/out")
    program(programs, "scontrol", "printf 'JobId=7 JobName=interactive\\n   Command=(null)\\n'")
    assert batch_job("7") is None


@pytest.mark.parametrize("printed", ["12", "12;cluster2"])
def test_a_submission_gives_the_number_and_where_the_output_goes(programs: Path, printed: str) -> None:
    program(programs, "sbatch", f"echo '{printed}'")
    job = submit(Path("/run/job.sbatch"), "/run%%j/slurm-%j.out")
    assert (job.job_id, job.output) == ("12", "/run%j/slurm-12.out")


def test_sbatchs_own_refusal_is_a_finding_with_its_words(programs: Path) -> None:
    program(
        programs, "sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1"
    )
    with pytest.raises(ConfigurationError) as refused:
        submit(Path("/run/job.sbatch"), "/run/slurm-%j.out")
    (finding,) = refused.value.findings
    assert finding.field == "launcher.slurm.options"
    assert finding.message == "sbatch says: Batch job submission failed: Invalid partition name specified"


def test_a_machine_without_sbatch_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = program_findings()
    assert finding.field == "launcher.backend"


def in_a_job(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[1-2]"} | variables).items():
        monkeypatch.setenv(name, value)


def test_outside_of_a_job_there_is_no_allocation() -> None:
    assert current_allocation({"PATH": "/bin"}) is None


def test_the_hosts_of_a_job_are_the_allocations(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "scontrol", '[ "$*" = "show hostnames gpu[1-2]" ] && printf "gpu1\\ngpu2\\n"')
    in_a_job(monkeypatch, SLURM_GPUS_ON_NODE="8", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")
    hosts, findings = allocated_hosts(load_config(["launcher=slurm", "cluster=dgx_h100", "cluster.hosts=2"]))
    assert not findings
    assert [(host.name, host.slots) for host in hosts or ()] == [("gpu1", 8), ("gpu2", 8)]
    other, _ = allocated_hosts(load_config(["launcher=ssh", "cluster=dgx_h100", "cluster.hosts=2"]))
    assert other is None


@pytest.mark.parametrize(
    ("variables", "field", "told"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, "cluster.devices_per_host", "has 4 GPUs"),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7,0,1,2,3"}, "CUDA_VISIBLE_DEVICES", "another job"),
    ],
)
def test_devices_that_the_job_does_not_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], field: str, told: str
) -> None:
    in_a_job(monkeypatch, **variables)
    _, (finding,) = allocated_hosts(load_config(["launcher=slurm", "cluster=dgx_h100"]))
    assert finding.field == field
    assert told in finding.message
