"""Locks between processes: held as long as their holder lives, and never the same thing by two."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from orchestrator.launch import locks, ports
from orchestrator.launch.locks import is_locked, leased, locked, runtime_dir

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(locks, "_LOOK_SECONDS", 0.02)


def hold(folder: Path, count: int, taken: Event) -> None:
    with leased(["0", "1", "2"], count, folder):
        taken.set()
        time.sleep(60)


def holder(folder: Path, count: int) -> multiprocessing.process.BaseProcess:
    """A process that holds ``count`` of three things."""
    taken = FORK.Event()
    process = FORK.Process(target=hold, args=(folder, count, taken), daemon=True)
    process.start()
    assert taken.wait(20)
    return process


def test_what_another_process_holds_is_not_given_until_it_is_killed(tmp_path: Path) -> None:
    other = holder(tmp_path, 2)
    with leased(["0", "1", "2"], 1, tmp_path) as taken:
        assert taken == ("2",)
    waits: list[str] = []

    def waiting() -> None:
        waits.append("waits")
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)

    with leased(["0", "1", "2"], 2, tmp_path, waiting=waiting) as taken:
        assert taken == ("0", "1")
    assert waits == ["waits"]


def test_who_waits_holds_nothing_meanwhile(tmp_path: Path) -> None:
    other = holder(tmp_path, 2)

    def waiting() -> None:
        assert not is_locked(tmp_path / "2")
        other.kill()

    with leased(["0", "1", "2"], 3, tmp_path, waiting=waiting):
        assert all(is_locked(tmp_path / name) for name in "012")


def test_a_lock_says_whether_it_is_held(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    with locked(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")


def test_a_batch_job_shares_with_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = runtime_dir()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert runtime_dir() != alone


def test_without_a_runtime_folder_a_private_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    assert runtime_dir().stat().st_mode & 0o777 == 0o700


def ports_of(count: int, drawn: list[int], found: multiprocessing.queues.Queue[list[int]]) -> None:
    ports.random.sample = lambda _population, _count: list(drawn)  # type: ignore[assignment]
    found.put([ports.free_port() for _ in range(count)])


def test_launches_at_once_never_get_the_same_port() -> None:
    """Even where all of them draw the same numbers."""
    drawn = list(range(21000, 21040))
    found = FORK.Queue()
    processes = [FORK.Process(target=ports_of, args=(8, drawn, found), daemon=True) for _ in range(4)]
    for process in processes:
        process.start()
    given = [port for _ in processes for port in found.get(timeout=30)]
    assert len(set(given)) == len(given) == 32


def test_a_port_comes_back_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports.random, "sample", lambda _population, _count: [21777])
    first = ports.free_port()
    assert first == 21777
    assert ports.free_port() != first
    os.utime(runtime_dir() / "ports" / "21777", (0, 0))
    assert ports.free_port() == first
