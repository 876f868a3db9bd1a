"""How a run stands, from the files that its controller and its ranks leave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator import lease
from orchestrator.control import OUTCOME, ControllerRecord, write_controller
from orchestrator.control import State as ControllerState
from orchestrator.launch.run_state import State, equal_hosts, read_run_state
from orchestrator.presence import Phase, ProgressWriter, RankRecord, write_rank
from orchestrator.run_dir import METRICS, Attempt, write_json, write_text


def attempt_at(run_dir: Path, *, hosts: int = 2) -> Attempt:
    """An attempt of 100 steps on hosts with two ranks each."""
    path = run_dir / "attempts" / "1"
    write_json(path / "config.json", {"training": {"max_steps": 100}})
    write_text(path / "hostfile", "".join(f"node-{number} slots=2\n" for number in range(hosts)))
    return Attempt(number=1, path=path, run_dir=run_dir)


def controlled(attempt: Attempt, state: ControllerState) -> lease.Lease:
    """A controller has written that it is in ``state``."""
    record = ControllerRecord(
        host="login-1", pid=7, started=1.0, backend="ssh", hosts=("node-0", "node-1"), detached=False, state=state
    )
    write_controller(attempt.path, record)
    return lease.Lease(attempt.path)


def ended(attempt: Attempt, status: str, **more: Any) -> None:
    write_json(attempt.path / OUTCOME, {"status": status, "reason": "because", **more})


def test_before_it_starts_nothing_is_known(tmp_path: Path) -> None:
    state = read_run_state(attempt_at(tmp_path))
    assert (state.state, state.step, state.max_steps, state.trained) == (State.not_started, 0, 100, None)


@pytest.mark.parametrize(
    ("controller", "phase", "expected"),
    [
        (ControllerState.connecting, None, State.starting),
        (ControllerState.running, None, State.starting),
        (ControllerState.running, Phase.data, State.running),
        (ControllerState.saving, Phase.save, State.saving),
        (ControllerState.stopping, Phase.train, State.stopping),
    ],
)
def test_while_its_controller_lives_it_goes_on(
    tmp_path: Path, controller: ControllerState, phase: Phase | None, expected: State
) -> None:
    attempt = attempt_at(tmp_path)
    controlled(attempt, controller)
    if phase is not None:
        ProgressWriter(attempt.path).advance(phase, step=3)
    state = read_run_state(attempt)
    assert (state.state, state.reason) == (expected, None)
    assert not state.state.is_over
    assert state.step == (0 if phase is None else 3)


@pytest.mark.parametrize(
    ("status", "expected", "bad"),
    [
        ("completed", State.completed, False),
        ("interrupted", State.stopped, False),
        ("failed", State.failed, True),
        ("hung", State.hung, True),
    ],
)
def test_when_it_has_ended_its_outcome_counts(tmp_path: Path, status: str, expected: State, bad: bool) -> None:
    attempt = attempt_at(tmp_path)
    controlled(attempt, ControllerState.running)
    ended(attempt, status, hosts=[{"host": "node-1", "exit_code": 9}])
    state = read_run_state(attempt)
    assert (state.state, state.reason, state.state.is_bad) == (expected, "because", bad)
    assert state.state.is_over
    assert [host.exit_code for host in state.hosts] == [None, 9]


def test_a_lease_that_does_not_move_means_that_the_controller_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "EXPIRE_SECONDS", 0.6)
    attempt = attempt_at(tmp_path)
    held = controlled(attempt, ControllerState.running)
    os.utime(attempt.path / lease.LEASE, (0, 0))
    state = read_run_state(attempt)
    assert state.state is State.abandoned
    assert state.reason == "its controller on login-1 (process 7) has gone"
    held.renew()
    assert read_run_state(attempt).state is State.starting


def test_rate_and_time_left_come_from_the_newest_steps(tmp_path: Path) -> None:
    attempt = attempt_at(tmp_path)
    controlled(attempt, ControllerState.running)
    ProgressWriter(attempt.path).advance(Phase.train, step=60)
    slow = [{"kind": "train", "step": step, "step_seconds": 9.0} for step in range(30)]
    fast = [{"kind": "train", "step": step, "step_seconds": 0.5} for step in range(30, 60)]
    evaluation = {"kind": "evaluate", "step": 50, "held_out_loss": 5.0}
    lines = [json.dumps(entry) for entry in (*slow, evaluation, *fast)]
    (attempt.path / METRICS).write_text("\n".join(lines) + '\n{"kind": "train", "step"')
    state = read_run_state(attempt)
    assert (state.step_seconds, state.remaining_seconds) == (0.5, 40 * 0.5)
    assert state.trained == fast[-1]
    assert state.evaluated == evaluation
    ended(attempt, "completed")
    assert read_run_state(attempt).remaining_seconds is None


def test_equal_hosts_are_one_group_and_the_odd_one_another(tmp_path: Path) -> None:
    attempt = attempt_at(tmp_path, hosts=50)
    for rank in range(99):
        write_rank(attempt.path, RankRecord(rank=rank, local_rank=rank % 2, host="h", pid=rank))
    groups = equal_hosts(read_run_state(attempt).hosts)
    assert [(len(group), group[0].started) for group in groups] == [(49, 2), (1, 1)]
    assert groups[1][0].name == "node-49"
