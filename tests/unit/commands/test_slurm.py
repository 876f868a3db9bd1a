"""What a run's Slurm job comes to; programs that stand for Slurm's answer on ``PATH``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from orchestrator.checkpoints.catalogue import Manifest, tag_of, write_manifest
from orchestrator.commands import slurm, slurm_job, slurm_restart
from orchestrator.commands.result import HOST_NOT_READY, INTERRUPTED, OK, RUN_FAILED
from orchestrator.config.enums import Command
from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.control import ControllerRecord, State, write_controller
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.status import Status, StoppedBy
from orchestrator.launch.slurm.follow import follow
from orchestrator.launch.slurm.job import Job, parse_job, write_job
from orchestrator.run_dir import checkpoint_dir, write_json

STOPPED = Outcome(status=Status.interrupted, reason="its time limit is near", stopped_by=StoppedBy.time_limit)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a program that comes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(job_id="7", script="job.sbatch", output=str(tmp_path / "slurm-7.out"), submitted=0.0)
    write_job(tmp_path, made)
    return made


def shown(state: str, **more: str) -> str:
    values = {"JobId": "7", "JobState": state, "Reason": "None", "ExitCode": "0:0", "NodeList": "(null)"} | more
    return " ".join(f"{name}={value}" for name, value in values.items())


def config(run_dir: Path, *words: str) -> RunConfig:
    return load_config(["launcher=slurm", f"run_dir={run_dir}", *words])


def in_job(monkeypatch: pytest.MonkeyPatch, job_id: str = "7", restarts: int = 0) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))


def save(run_dir: Path, step: int) -> None:
    path = checkpoint_dir(run_dir) / tag_of(step)
    path.mkdir(parents=True)
    known = {field.name: None for field in fields(Manifest)}
    write_manifest(path, Manifest(**{**known, "step": step}))


def test_a_job_is_followed_through_its_states_with_all_that_it_prints(
    tmp_path: Path, program: Callable[[str, str], None], job: Job
) -> None:
    """The program tells the next state each time it is asked."""
    states = [shown("PENDING", Reason="Priority"), shown("RUNNING", NodeList="node[1-2]"), shown("COMPLETED")]
    for number, state in enumerate(states):
        (tmp_path / f"state{number}").write_text(state)
    program(
        "scontrol",
        f"cd {tmp_path}; n=$(cat asked 2>/dev/null || echo 0); echo $((n + 1)) > asked;"
        f" [ $n = 1 ] && printf 'step 1\\nhalf a' > {job.output}; [ $n = 2 ] && printf ' line\\nstep 2\\n' >> {job.output};"
        " cat state$n",
    )
    lines: list[str] = []
    state = follow(job, lines.append, ask_seconds=0.1)
    assert state is not None and state.state == "COMPLETED"
    assert lines == [
        "job 7: PENDING (Priority)",
        "job 7: RUNNING on node[1-2]",
        "step 1",
        "half a line",
        "step 2",
        "job 7: COMPLETED",
    ]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (shown("COMPLETED"), OK),
        (shown("CANCELLED", ExitCode="0:15"), INTERRUPTED),
        (shown("FAILED", ExitCode="3:0"), HOST_NOT_READY),
        (shown("FAILED", ExitCode="4:0"), RUN_FAILED),
        (shown("FAILED", ExitCode="1:0"), RUN_FAILED),
        (shown("TIMEOUT", ExitCode="0:15"), RUN_FAILED),
        (shown("NODE_FAIL"), RUN_FAILED),
    ],
)
def test_the_exit_code_is_the_one_of_the_launch_in_the_job(tmp_path: Path, job: Job, said: str, code: int) -> None:
    assert slurm.ended(job, parse_job(said), tmp_path).exit_code == code


@pytest.mark.parametrize(
    ("steps", "resumed_from", "words", "requeued"),
    [
        ((5,), None, (), True),
        ((5, 9), tag_of(5), (), True),
        ((5,), tag_of(5), (), False),
        ((), None, (), False),
        ((5,), None, ("launcher.slurm.requeue=false",), False),
    ],
    ids=["saved", "saved more", "saved nothing new", "saved nothing", "not wanted"],
)
def test_a_job_goes_back_into_the_queue_if_its_next_start_comes_further(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int, ...],
    resumed_from: str | None,
    words: tuple[str, ...],
    requeued: bool,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(slurm_restart, "requeue", asked.append)
    monkeypatch.setattr(slurm_restart, "REQUEUE_SECONDS", 0.0)
    in_job(monkeypatch)
    for step in steps:
        save(tmp_path, step)
    slurm_restart.requeue_if_due(config(tmp_path, *words), STOPPED, resumed_from, print)
    assert asked == ["7"] * requeued


def test_a_run_that_was_stopped_by_somebody_stays_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_job(monkeypatch)
    monkeypatch.setattr(slurm_restart, "requeue", lambda _job_id: pytest.fail("it was requeued"))
    save(tmp_path, 5)
    outcome = Outcome(status=Status.interrupted, reason="it was asked to stop", stopped_by=StoppedBy.request)
    slurm_restart.requeue_if_due(config(tmp_path), outcome, None, print)


@pytest.mark.usefixtures("job")
def test_only_the_runs_own_job_that_starts_again_goes_on_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5)
    assert not slurm_restart.goes_on(config(tmp_path)), "outside of any job"
    in_job(monkeypatch)
    assert not slurm_restart.goes_on(config(tmp_path)), "its first start"
    in_job(monkeypatch, restarts=1)
    assert slurm_restart.goes_on(config(tmp_path))
    in_job(monkeypatch, job_id="8", restarts=1)
    assert not slurm_restart.goes_on(config(tmp_path)), "another job"


def controller(run_dir: Path, state: State) -> None:
    record = ControllerRecord(host="a", pid=1, started=0.0, backend="slurm", hosts=("a",), detached=False, state=state)
    write_controller(run_dir / "attempts" / "1", record)
    write_json(run_dir / "attempts" / "1" / "attempt.json", {"attempt": 1})


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("state", "attempt", "answers"),
    [
        ("PENDING", None, True),
        ("RUNNING", None, True),
        ("FAILED", None, True),
        ("PENDING", State.ended, True),
        ("PENDING", State.running, True),
        ("RUNNING", State.running, False),
        ("COMPLETED", State.ended, False),
    ],
)
def test_the_job_answers_where_no_attempt_can(
    tmp_path: Path, program: Callable[[str, str], None], state: str, attempt: State | None, answers: bool
) -> None:
    """A controller that a failed host took with it has not ended by its own record, while the job waits to start again."""
    program("scontrol", f"echo '{shown(state)}'")
    if attempt is not None:
        controller(tmp_path, attempt)
    result = slurm_job.answer(Command.status, config(tmp_path), tmp_path, print)
    assert (result is not None) == answers
    if result is not None:
        assert result.payload["state"] == state
        assert result.exit_code == (RUN_FAILED if state == "FAILED" else OK)


def test_what_a_job_without_an_attempt_has_printed_is_its_log(
    tmp_path: Path, program: Callable[[str, str], None], job: Job
) -> None:
    """Refused in its allocation, it has nothing else."""
    program("scontrol", f"echo '{shown('FAILED', ExitCode='3:0')}'")
    Path(job.output).write_text("one\ndata.path: it does not exist\n")
    result = slurm_job.answer(Command.logs, config(tmp_path, "last=1", "follow=true"), tmp_path, print)
    assert result is not None
    assert result.payload["lines"] == ["data.path: it does not exist"]


@pytest.mark.usefixtures("job")
def test_a_job_that_waits_is_cancelled(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    program("scontrol", f"echo '{shown('PENDING')}'")
    program("scancel", f"echo $* > {tmp_path}/cancelled")
    result = slurm_job.answer(Command.stop, config(tmp_path), tmp_path, print)
    assert result is not None and result.exit_code == OK
    assert (tmp_path / "cancelled").read_text() == "7\n"


@pytest.mark.usefixtures("job")
def test_where_slurm_cannot_be_asked_the_files_of_the_run_answer(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    program("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    said: list[str] = []
    assert slurm_job.answer(Command.status, config(tmp_path), tmp_path, said.append) is None
    assert "Unable to contact slurm controller" in said[0]
