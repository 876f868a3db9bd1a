"""``status``, ``logs`` and ``stop`` on runs whose controller is a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands import logs, named_run, status, stop
from orchestrator.commands.result import OK, RUN_FAILED, CommandResult
from orchestrator.config.enums import Output
from orchestrator.config.schema import RunConfig
from orchestrator.control import OUTCOME, ControllerRecord, Stop, read_stop, write_controller
from orchestrator.control import State as ControllerState
from orchestrator.errors import ConfigurationError
from orchestrator.launch.slurm.job import Job, write_job
from orchestrator.lease import Lease
from orchestrator.presence import Phase, ProgressWriter, RankRecord, write_rank
from orchestrator.run_dir import Attempt, write_json, write_text

LINES = ("node-0: [orchestrator] step 1/9", "noise", "node-1: [rank3]: Traceback", "[rank0]: words", "node-1: [rank3]: Error")


def new_attempt(run_dir: Path, number: int = 1) -> Attempt:
    path = run_dir / "attempts" / str(number)
    write_json(path / "config.json", {"training": {"max_steps": 9}})
    write_text(path / "hostfile", "node-0 slots=2\nnode-1 slots=2\n")
    write_json(path / "attempt.json", {"attempt": number})
    return Attempt(number=number, path=path, run_dir=run_dir)


class Controller:
    """Keeps the files of an attempt as a controller does."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._record = ControllerRecord(
            host="login-1",
            pid=7,
            started=time.time(),
            backend="ssh",
            hosts=("node-0", "node-1"),
            detached=False,
            state=ControllerState.running,
        )
        write_controller(attempt.path, self._record)
        self.lease = Lease(attempt.path)
        self.progress = ProgressWriter(attempt.path)
        self.progress.advance(Phase.train, step=4)
        self.asked: list[Stop] = []

    def enter(self, state: ControllerState) -> None:
        self._record = replace(self._record, state=state)
        write_controller(self._attempt.path, self._record)

    def end(self, status: str, **more: Any) -> None:
        write_json(self._attempt.path / OUTCOME, {"status": status, "reason": "because", **more})
        self.enter(ControllerState.ended)

    def obey(self) -> None:
        """Wait for a request, save, and end."""
        while (asked := read_stop(self._attempt.path)) is None:
            time.sleep(0.05)
        self.asked.append(asked)
        self.enter(ControllerState.saving)
        time.sleep(0.7)
        self.progress.advance(Phase.end, step=5)
        self.end("interrupted", saved="/runs/x/checkpoints/global_step5")


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return new_attempt(tmp_path / "run")


def config(**changes: Any) -> RunConfig:
    return replace(RunConfig(run_dir="runs/none"), **changes)


def said(result: CommandResult) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        for part in result.text:
            console.print(part)
    return capture.get()


def test_status_shows_state_hosts_and_phase(attempt: Attempt) -> None:
    Controller(attempt)
    for rank in range(3):
        write_rank(attempt.path, RankRecord(rank=rank, local_rank=rank % 2, host="h", pid=rank))
    result = status.run(config(), attempt, print)
    text = " ".join(said(result).split())
    assert result.exit_code == OK
    for part in ("running: step 4 of 9, training", "login-1, process 7, ssh", "node-1 2-3 1 of 2", "checkpoint none yet"):
        assert part in text
    assert result.payload["state"] == "running"
    assert [host["started"] for host in result.payload["hosts"]] == [2, 1]


def test_status_of_a_failed_run_says_why_and_fails(attempt: Attempt) -> None:
    Controller(attempt).end("failed")
    result = status.run(config(), attempt, print)
    assert result.exit_code == RUN_FAILED
    assert "failed: step 4 of 9; because" in said(result)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ({}, LINES),
        ({"last": 2}, LINES[-2:]),
        ({"last": 0}, LINES),
        ({"rank": 3}, (LINES[2], LINES[4])),
        ({"rank": 0}, (LINES[0], LINES[3])),
        ({"rank": 3, "last": 1}, LINES[-1:]),
        ({"rank": 2}, ()),
    ],
)
def test_logs_shows_the_lines_that_are_wanted(attempt: Attempt, wanted: dict[str, int], shown: tuple[str, ...]) -> None:
    write_text(attempt.log_file, "\n".join(LINES) + "\n")
    echoed: list[str] = []
    assert logs.run(config(**wanted), attempt, echoed.append).exit_code == OK
    assert tuple(echoed) == shown
    as_json = logs.run(config(**wanted, output=Output.json), attempt, echoed.append)
    assert tuple(as_json.payload["lines"]) == shown


@pytest.mark.parametrize(("ending", "code"), [("completed", OK), ("failed", RUN_FAILED)])
def test_following_goes_on_until_the_run_has_ended(attempt: Attempt, ending: str, code: int) -> None:
    controller = Controller(attempt)
    echoed: list[str] = []

    def write() -> None:
        time.sleep(0.2)
        with attempt.log_file.open("w") as log:
            for line in LINES:
                log.write(line[:5])
                log.flush()
                time.sleep(0.2)
                log.write(line[5:] + "\n")
        controller.end(ending)

    with meanwhile(write):
        result = logs.run(config(follow=True), attempt, echoed.append)
    assert tuple(echoed) == LINES
    assert result.exit_code == code
    assert ending in said(result)


def test_ctrl_c_ends_the_following_and_not_the_run(attempt: Attempt) -> None:
    Controller(attempt)
    write_text(attempt.log_file, "line\n")

    def interrupted(_line: str) -> None:
        raise KeyboardInterrupt

    result = logs.run(config(follow=True), attempt, interrupted)
    assert result.exit_code == OK
    assert "the run goes on" in said(result)
    assert read_stop(attempt.path) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, "has printed nothing yet"), ({"last": -1}, "last is -1"), ({"follow": True, "output": Output.json}, "no JSON")],
)
def test_logs_that_cannot_be_shown_are_refused(attempt: Attempt, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        logs.run(config(**changes), attempt, print)


@pytest.mark.parametrize(("now", "asked"), [(False, Stop.save), (True, Stop.now)])
def test_stop_asks_waits_and_says_how_it_ended(attempt: Attempt, now: bool, asked: Stop) -> None:
    controller = Controller(attempt)
    echoed: list[str] = []
    with meanwhile(controller.obey):
        result = stop.run(config(now=now), attempt, echoed.append)
    assert controller.asked == [asked]
    assert result.exit_code == OK
    assert result.payload["state"] == "stopped"
    assert any("saving" in line for line in echoed)
    assert "checkpoint.resume=true" in said(result)


def test_asking_again_does_not_take_back_what_was_to_be_at_once(attempt: Attempt) -> None:
    controller = Controller(attempt)
    write_text(attempt.path / "stop", "now\n")
    with meanwhile(controller.obey):
        stop.run(config(), attempt, print)
    assert controller.asked == [Stop.now]


def test_a_run_that_fails_while_it_is_stopped_fails_the_command(attempt: Attempt) -> None:
    controller = Controller(attempt)
    with meanwhile(lambda: (time.sleep(0.5), controller.end("failed"))[1]):
        assert stop.run(config(), attempt, print).exit_code == RUN_FAILED


def test_a_run_that_has_ended_is_left_alone(attempt: Attempt) -> None:
    Controller(attempt).end("completed")
    result = stop.run(config(), attempt, print)
    assert (result.exit_code, result.payload["already"]) == (OK, True)
    assert read_stop(attempt.path) is None


def test_nobody_is_asked_where_the_controller_has_gone(attempt: Attempt) -> None:
    Controller(attempt)
    (attempt.path / "lease").unlink()
    result = stop.run(config(), attempt, print)
    assert result.exit_code == RUN_FAILED
    assert "its controller on login-1 (process 7) has gone" in said(result)
    assert "its ranks have ended by their lease" in said(result)


def test_a_run_that_was_never_started_cannot_be_stopped(attempt: Attempt) -> None:
    with pytest.raises(ConfigurationError, match="has not been started"):
        stop.run(config(), attempt, print)


def test_the_newest_attempt_of_the_run_that_is_named_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 10):
        new_attempt(tmp_path / "runs" / "old", number)
    time.sleep(0.01)
    new_attempt(tmp_path / "runs" / "new")
    assert named_run.attempt_of(named_run.named_run(["runs/old"], [], config())).number == 10
    assert named_run.named_run([], ["run_dir=runs/old"], config(run_dir="runs/old")) == tmp_path / "runs" / "old"
    assert named_run.named_run([], ["output=json"], config()) == tmp_path / "runs" / "new"


def test_a_run_whose_job_still_waits_is_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_attempt(tmp_path / "runs" / "old")
    time.sleep(0.01)
    write_job(tmp_path / "runs" / "waiting", Job(job_id="7", script="job.sbatch", output="slurm-7.out", submitted=0.0))
    assert named_run.named_run([], [], config()) == tmp_path / "runs" / "waiting"


@pytest.mark.parametrize(
    ("names", "told"),
    [((), "none under runs/"), (("nowhere",), "is not a folder"), ((".",), "holds no run"), (("a", "b"), "2 runs")],
)
def test_what_is_no_run_is_refused(names: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=told):
        named_run.attempt_of(named_run.named_run(names, [], config()))
