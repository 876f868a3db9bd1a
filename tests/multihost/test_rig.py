"""The hosts are what the other tests take them for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.multihost.rig import NVME, Host, Rig, eventually, left_on


def test_every_host_reaches_every_other_by_name(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        for other in hosts:
            ended = host.run("ssh", "-o", "BatchMode=yes", other.name, "hostname")
            assert ended.stdout == f"{other.name}\n", ended.stderr


def test_pdsh_reaches_all_at_once(hosts: tuple[Host, ...]) -> None:
    ended = hosts[0].run("pdsh", "-R", "ssh", "-w", "host0,host1,host2", "hostname")
    assert sorted(ended.stdout.split("\n")[:-1]) == [f"{host.name}: {host.name}" for host in hosts], ended.stderr


def test_a_login_runs_the_code_of_this_checkout(hosts: tuple[Host, ...]) -> None:
    ended = hosts[0].run("ssh", "host1", "python3 -c 'import orchestrator; print(orchestrator.__file__)'")
    assert ended.stdout.strip() == str(pytest.importorskip("orchestrator").__file__), ended.stderr


def test_an_unknown_name_is_unknown_at_once(hosts: tuple[Host, ...]) -> None:
    ended = hosts[0].run("ssh", "-o", "BatchMode=yes", "host9", "true", timeout=20)
    assert "Could not resolve hostname" in ended.stderr or "not known" in ended.stderr


def test_only_the_shared_directory_is_shared(rig: Rig, hosts: tuple[Host, ...]) -> None:
    for place, seen in (("/tmp/file", False), ("/dev/shm/file", False), (f"{NVME}/file", False), (f"{rig.shared}/file", True)):
        hosts[0].run("sh", "-c", f"echo here > {place}")
        assert (hosts[1].run("cat", place).code == 0) == seen, place


def test_disks_differ(hosts: tuple[Host, ...]) -> None:
    sizes = [
        hosts[0].run("ssh", host.name, f"df --output=size --block-size=1M {NVME} | tail -1").stdout.strip() for host in hosts
    ]
    assert sizes == ["512", "256", "128"]


def test_a_process_is_found_on_its_host_only(hosts: tuple[Host, ...]) -> None:
    assert not left_on(hosts)
    hosts[0].run("ssh", "host1", "setsid sleep 1001 >/dev/null 2>&1 </dev/null &")
    eventually(lambda: left_on(hosts, within=0) == ["sleep 1001"], within=30, what="it sleeps")
    assert hosts[1].process("sleep 1001")
    assert not hosts[0].processes()
    hosts[1].clear()
    assert not hosts[1].processes()


def test_a_cut_link_loses_everything_until_it_is_mended(hosts: tuple[Host, ...]) -> None:
    probe = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "host1", "true")
    hosts[1].cut()
    assert hosts[0].run(*probe).code == 255
    assert hosts[0].run(*probe[:-2], "host2", "true").code == 0
    hosts[1].mend()
    assert hosts[0].run(*probe).code == 0


def test_a_stopped_sshd_lets_nobody_in_and_keeps_who_is_in(rig: Rig, hosts: tuple[Host, ...]) -> None:
    inside = hosts[0].start("ssh", "host1", "sleep 1002", cwd=rig.shared, log=rig.shared / "inside.log")

    def is_inside() -> bool:
        assert inside.outer.poll() is None, inside.printed
        return "sleep 1002" in left_on(hosts[1:2], within=0)

    eventually(is_inside, within=60, what="somebody is inside")
    hosts[1].stop_sshd()
    assert "refused" in hosts[0].run("ssh", "-o", "BatchMode=yes", "host1", "true").stderr
    assert inside.outer.poll() is None
    hosts[1].start_sshd()
    assert hosts[0].run("ssh", "-o", "BatchMode=yes", "host1", "true").code == 0


def test_a_killed_session_leaves_nothing(tmp_path: Path) -> None:
    program = """
import pathlib, sys, time
from tests.multihost.rig import build
here = pathlib.Path(sys.argv[1])
(here / "shared").mkdir()
rig = build(here, here / "shared", (64,), root=pathlib.Path.cwd())
sleeping = rig.hosts[0].start("sleep", "1003", cwd=here, log=here / "log")
print(rig.switch.init, rig.hosts[0].spaces.init, sleeping.process.pid, sleeping.outer.pid, flush=True)
time.sleep(1000)
"""
    words = [sys.executable, "-c", program, str(tmp_path)]
    session = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert session.stdout is not None
    pids = [int(word) for word in session.stdout.readline().split()]
    assert len(pids) == 4 and all(map(psutil.pid_exists, pids))
    session.kill()
    session.communicate()
    eventually(lambda: not any(map(psutil.pid_exists, pids)), within=20, what="the hosts end with their session")
