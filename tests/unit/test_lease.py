"""A lease as the ranks see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.lease import EXPIRE_SECONDS, LEASE, RENEW_SECONDS, Lease, LeaseWatch, Request


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_that_is_renewed_holds_and_one_that_is_not_expires(tmp_path: Path) -> None:
    lease, clock = Lease(tmp_path), Clock()
    watch = LeaseWatch(tmp_path, clock=clock)
    for _ in range(20):
        lease.renew()
        clock.now += RENEW_SECONDS
        assert watch.look().reason is None
    clock.now += EXPIRE_SECONDS - 1
    assert watch.look().reason is None
    clock.now += 2
    assert watch.look().reason == "the controller of the run has not been heard of for 19 s"


@pytest.mark.parametrize("damage", [b"", b"half of it", b"\xff\xfe"])
def test_what_cannot_be_read_counts_as_not_renewed(tmp_path: Path, damage: bytes) -> None:
    Lease(tmp_path)
    clock = Clock()
    watch = LeaseWatch(tmp_path, clock=clock)
    watch.look()
    (tmp_path / LEASE).write_bytes(damage)
    assert watch.look().reason is None
    clock.now += EXPIRE_SECONDS + 1
    assert "has not been heard of" in (watch.look().reason or "")


def test_a_rank_that_slept_and_finds_its_controller_alive_goes_on(tmp_path: Path) -> None:
    lease, clock = Lease(tmp_path), Clock()
    watch = LeaseWatch(tmp_path, clock=clock)
    clock.now += 10 * EXPIRE_SECONDS
    lease.renew()
    assert watch.look().reason is None


def test_a_disk_that_did_not_answer_is_not_the_controllers_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Lease(tmp_path)
    clock = Clock()
    watch = LeaseWatch(tmp_path, clock=clock)
    watch.look()

    def slow(*_arguments: object, **_options: object) -> str:
        clock.now += 10 * EXPIRE_SECONDS
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", slow)
        assert watch.look().reason is None
    clock.now += EXPIRE_SECONDS + 1
    assert "has not been heard of" in (watch.look().reason or "")


def test_requests_reach_the_ranks_and_stand_until_the_next(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    watch = LeaseWatch(tmp_path)
    seen = []
    for request in (Request.go_on, Request.dump_stacks, Request.save_and_stop):
        lease.ask(request)
        lease.renew()
        seen.append(watch.look().request)
    assert seen == [Request.go_on, Request.dump_stacks, Request.save_and_stop]


def test_when_a_lease_has_ended_ranks_end_and_those_that_start_too_late_as_well(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    early = LeaseWatch(tmp_path)
    assert early.look().reason is None
    lease.end()
    assert early.look().reason == "the run was stopped"
    assert LeaseWatch(tmp_path).look().reason == "the run was stopped"


def test_a_lease_that_was_removed_is_over(tmp_path: Path) -> None:
    Lease(tmp_path)
    watch = LeaseWatch(tmp_path)
    (tmp_path / LEASE).unlink()
    assert watch.look().reason == "the run was stopped"


def test_without_a_controller_nothing_is_watched(tmp_path: Path) -> None:
    watch = LeaseWatch(tmp_path)
    assert not watch.is_held
    assert watch.look().reason is None
