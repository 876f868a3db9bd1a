"""A script on many hosts at once, behind an ``ssh`` that a test writes: what comes back, is said, and stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from orchestrator.config.load import load_config
from orchestrator.launch.preflight import probe
from orchestrator.launch.preflight.fan_out import INJECTED_FACTS, ask_all, run, script
from tests.fake_ssh import FakeSsh, running_children

LONG = 10_000_000 + os.getpid()
"""Seconds that a host sleeps of which nobody wants to hear: a number that no other process of this machine has."""
REQUEST = {"seconds": 10, "search": [], "packages": [], "folders": {}, "files": {}, "token": None, "port": None}
SCRIPT = script(probe, {**REQUEST, "extensions_dir": None, "operators": [], "tools": []})


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return FakeSsh(tmp_path)


def asked(hosts: list[str], *overrides: str) -> dict[str, str | None]:
    """Host -> its hostname, or what is wrong with it and what is to be done."""
    answers = run(ask_all(hosts, SCRIPT, load_config(list(overrides))))
    said = {}
    for host, answer in answers.items():
        wrong = f"{answer.failure.field}: {answer.failure.message} -> {answer.failure.fix}" if answer.failure else None
        said[host] = wrong if answer.value is None else answer.value["hostname"]
    return said


def left_behind(ssh: FakeSsh) -> list[str]:
    """Processes of the fake, and sleeps it started."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(ssh.folder) in line or str(LONG) in line]


def nothing_is_left(ssh: FakeSsh) -> bool:
    """What was killed takes a moment to go."""
    return happens(lambda: not left_behind(ssh), within=10)


def happens(what: Callable[[], bool], *, within: float) -> bool:
    deadline = time.monotonic() + within
    while not (there := what()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return there


def test_answers_come_in_the_order_of_the_hosts_and_this_machine_needs_no_ssh(ssh: FakeSsh) -> None:
    ssh.host("far1", delay=0.3)
    ssh.host("far2", kind="noisy")
    said = asked(["far1", "localhost", "far2"])
    assert list(said.items()) == [("far1", "far1"), ("localhost", os.uname().nodename), ("far2", "far2")]


@pytest.mark.parametrize(
    ("kind", "field", "told"),
    [
        ("refused", "launcher.ssh_arguments", ["no ssh server", "start sshd on far"]),
        ("unknown", "cluster.hostfile", ["does not resolve", "/etc/hosts"]),
        ("dead", "cluster.hostfile", ["cannot be reached", "firewall"]),
        ("locked", "launcher.ssh_arguments", ["not let in", "ssh-copy-id far"]),
        ("changed", "launcher.ssh_arguments", ["host key", "ssh-keygen -R far"]),
        ("crowded", "launcher.ssh_arguments", ["closed before", "MaxStartups"]),
        ("config", "launcher.ssh_arguments", ["Bad configuration option", "~/.ssh/config"]),
        ("strange", "launcher.ssh_arguments", ["something else", "ssh far true"]),
        ("setup", "launcher.setup", ["module load cuda", "exit code 127"]),
        ("bare", "launcher", ["no Python at", "same path on every host"]),
        ("broken", "launcher", ["exit code 1", "libpython3.11"]),
    ],
)
def test_a_host_that_fails_is_named_with_what_was_said_and_the_fix(
    kind: str, field: str, told: list[str], ssh: FakeSsh
) -> None:
    ssh.host("far", kind=kind)
    ssh.host("near")
    said = asked(["far", "near"])
    assert said["near"] == "near"
    assert str(said["far"]).startswith(f"{field}: ")
    assert all(part in str(said["far"]) for part in told), said


@pytest.mark.parametrize(
    ("script", "field", "told"),
    [
        ("echo 'srun: error: Unable to create step for job 7: Node is down' >&2; exit 1", "launcher.backend", "Node is down"),
        (
            "echo no libpython >&2; echo 'srun: error: far: task 0: Exited with exit code 1' >&2; exit 1",
            "launcher",
            "libpython",
        ),
    ],
    ids=["no step", "the task"],
)
def test_inside_of_a_slurm_job_hosts_are_asked_over_srun(script: str, field: str, told: str, ssh: FakeSsh) -> None:
    (ssh.folder / "srun").write_text(f"#!/bin/sh\n{script}\n")
    (ssh.folder / "srun").chmod(0o755)
    said = str(asked(["far"], "launcher=slurm")["far"])
    assert said.startswith(f"{field}: ")
    assert told in said


def test_a_silent_host_costs_its_time_and_no_process(ssh: FakeSsh) -> None:
    ssh.host("far", delay=LONG)
    ssh.host("near")
    said = asked(["far", "near"], "preflight.timeout=2")
    assert said["near"] == "near"
    assert "preflight.timeout=2 s" in str(said["far"])
    assert nothing_is_left(ssh)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_user_who_has_enough_leaves_no_process(number: signal.Signals, ssh: FakeSsh) -> None:
    hosts = [f"far{index}" for index in range(8)]
    for host in hosts:
        ssh.host(host, delay=LONG)

    def stop_when_they_run() -> bool:
        they_run = happens(lambda: len(left_behind(ssh)) >= 4, within=60)
        os.kill(os.getpid(), number)
        return they_run

    with ThreadPoolExecutor(1) as threads:
        stopper = threads.submit(stop_when_they_run)
        with pytest.raises(KeyboardInterrupt):
            asked(hosts, "preflight.parallel=4", "preflight.timeout=100")
    assert stopper.result(), "it was stopped before there was anything to end"
    assert nothing_is_left(ssh)


def test_never_more_hosts_at_once_than_asked_for(ssh: FakeSsh) -> None:
    hosts = [f"far{index}" for index in range(24)]
    for host in hosts:
        ssh.host(host, delay=0.2)
    with running_children() as counts:
        said = asked(hosts, "preflight.parallel=5")
    assert list(said) == hosts and None not in said.values()
    assert 1 < max(counts) <= 5


def test_lines_before_the_workers_come_before_the_probe_too(tmp_path: Path) -> None:
    setup = [f"echo hello; cat > {tmp_path}/input", "export MARKED=yes"]
    assert asked(["localhost"], f"launcher.setup={setup}")["localhost"] == os.uname().nodename
    assert (tmp_path / "input").read_text() == ""
    said = asked(["localhost"], "launcher.setup=['nosuchcommand here','touch /nowhere']")["localhost"]
    assert "nosuchcommand: command not found" in str(said)


def test_a_test_can_say_what_a_host_is_like(ssh: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh.host("far1")
    ssh.host("far2")
    (tmp_path / "facts.json").write_text('{"*": {"num_cores": 3}, "far2": {"hostname": "else", "memory": {"limit_bytes": 5}}}')
    monkeypatch.setenv(INJECTED_FACTS, str(tmp_path / "facts.json"))
    answers = run(ask_all(["far1", "far2"], SCRIPT, load_config([])))
    first, second = (answer.value or {} for answer in answers.values())
    assert (first["hostname"], second["hostname"], second["num_cores"]) == ("far1", "else", 3)
    assert second["memory"] == {**first["memory"], "limit_bytes": 5}


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_user_who_has_enough_while_hosts_are_being_called_is_heard(turns: int, ssh: FakeSsh) -> None:
    ssh.host("far", delay=LONG)

    async def called_off() -> None:
        asking = asyncio.create_task(ask_all(["far"], SCRIPT, load_config([])))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asking

    async def in_time() -> None:
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await called_off()

    run(in_time())
    assert nothing_is_left(ssh)
