"""``orchestrator preflight`` on hosts with an ssh server each: what it finds, says, and leaves behind."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.multihost.job import SMOKE, START_SECONDS, hostfile
from tests.multihost.rig import INTERFACE, NVME, Ended, Host, Rig, command_line, eventually, left_on

Break = Callable[[tuple[Host, ...]], None]


@pytest.fixture
def folder(rig: Rig, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own that all hosts see."""
    made = rig.shared / re.sub(r"\W", "_", request.node.name)
    made.mkdir()
    return made


def words(folder: Path, hosts: tuple[Host, ...], *more: str) -> list[str]:
    named = f"cluster.hostfile={hostfile(folder, hosts)}"
    return [sys.executable, "-m", "orchestrator", "preflight", *SMOKE, "run_dir=run", named, *more]


def preflight(folder: Path, hosts: tuple[Host, ...], *more: str) -> Ended:
    return hosts[0].run(*words(folder, hosts, *more), cwd=folder, timeout=START_SECONDS)


def only_finding(ended: Ended) -> dict[str, Any]:
    assert ended.code == 3, ended.everything
    found = [finding for finding in json.loads(ended.stdout)["findings"] if finding["severity"] == "error"]
    assert len(found) == 1, found
    return found[0]


def test_hosts_that_are_ready_are_known_and_nothing_is_left_on_them(folder: Path, hosts: tuple[Host, ...]) -> None:
    offload = ("zero=stage3", "offload=optimizer_nvme", f"offload.nvme_path={NVME}")
    ended = preflight(folder, hosts, *offload, "output=json")
    assert ended.code == 0, ended.everything
    answer = json.loads(ended.stdout)
    assert answer["verdict"] == "ready"
    assert answer["master_addr"] == hosts[0].address
    facts = {name: entry["facts"] for name, entry in answer["hosts"].items()}
    assert [facts[host.name]["hostname"] for host in hosts] == ["host0", "host1", "host2"]
    rooms = [facts[host.name]["folders"]["offload.nvme_path"]["total_bytes"] >> 20 for host in hosts]
    assert rooms == [512, 256, 128]
    # free bytes, of which the probe's own page for direct I/O may be one
    assert [round(entry["capacity_bytes"] / 2**20) for entry in answer["memory"]["nvme"]] == rooms
    assert all(entry["unknown"] == {} and entry["shared"] for entry in facts.values())
    assert not left_on(hosts)
    assert [path.name for path in folder.iterdir()] == ["hostfile"]


def test_a_disk_that_others_have_filled_is_planned_with_and_named(folder: Path, hosts: tuple[Host, ...]) -> None:
    hosts[1].run("dd", "if=/dev/zero", f"of={NVME}/others", "bs=64K", "count=4095")
    ended = preflight(folder, hosts[:2], "zero=stage3", "offload=optimizer_nvme", f"offload.nvme_path={NVME}", "output=json")
    finding = only_finding(ended)
    assert finding["rule"] == "nvme-capacity"
    assert finding["message"].startswith("host1 needs ")


def test_a_folder_that_is_not_shared_is_named(folder: Path, hosts: tuple[Host, ...]) -> None:
    ended = preflight(folder, hosts[:2], "run_dir=/tmp/own/run", "output=json")
    finding = only_finding(ended)
    assert (finding["rule"], finding["message"].partition(":")[0]) == ("run-directory-shared", "host1")
    assert hosts[0].run("sh", "-c", "ls -A /tmp | grep orchestrator_").stdout == ""


def test_data_that_is_not_the_same_everywhere_is_named(folder: Path, hosts: tuple[Host, ...]) -> None:
    for number, host in enumerate(hosts):
        host.path(Path("/tmp/book.txt")).write_text("once upon a time " * 1000 + ("!" if number == 1 else "."))
    ended = preflight(
        folder,
        hosts,
        "data=text",
        "data.path=/tmp/book.txt",
        "data.tokenizer_vocab_size=300",
        "model.vocab_size=512",
        "output=json",
    )
    finding = only_finding(ended)
    assert (finding["rule"], finding["field"]) == ("hosts-differ", "data.path")
    assert finding["message"].startswith("host1: ")


def forgets_the_host_key(hosts: tuple[Host, ...]) -> None:
    (hosts[0].home / ".ssh" / "known_hosts").write_text("")


def lets_nobody_in(hosts: tuple[Host, ...]) -> None:
    (hosts[1].home / ".ssh" / "authorized_keys").write_text("")


def is_cut_off(hosts: tuple[Host, ...]) -> None:
    hosts[1].cut()


@pytest.mark.parametrize(
    ("breaks", "told", "fix"),
    [
        (forgets_the_host_key, "host key", "ssh host1"),
        (lets_nobody_in, "not let in", "ssh-copy-id host1"),
        (is_cut_off, "cannot be reached", "ssh host1 true"),
    ],
)
def test_a_host_that_ssh_does_not_reach_is_named_with_the_way_out(
    breaks: Break, told: str, fix: str, folder: Path, hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    homes = [host.home / ".ssh" for host in hosts]
    for home in homes:
        shutil.copytree(home, tmp_path / home.parts[-3])
    try:
        breaks(hosts)
        ended = preflight(folder, hosts[:2], "launcher.connect_seconds=4", "output=json")
    finally:
        for home in homes:
            shutil.copytree(tmp_path / home.parts[-3], home, dirs_exist_ok=True)
    finding = only_finding(ended)
    assert finding["rule"] == "host-unreachable"
    assert finding["message"].startswith("host1: ") and told in finding["message"]
    assert fix in finding["fix"]


def test_an_address_that_others_do_not_reach_is_named(folder: Path, hosts: tuple[Host, ...]) -> None:
    ended = preflight(folder, hosts[:2], "launcher.master_addr=10.211.7.99", "output=json")
    finding = only_finding(ended)
    assert finding["field"] == "launcher.master_addr"
    assert "host1" in finding["message"] and "10.211.7.99" in finding["message"]


def test_a_talkative_login_disturbs_nothing(folder: Path, hosts: tuple[Host, ...]) -> None:
    greeting = hosts[1].home / ".bashrc"
    greeting.write_text("echo Welcome; echo to host1 >&2\n")
    try:
        ended = preflight(folder, hosts[:2], "launcher.setup=['echo loading']")
    finally:
        greeting.unlink()
    assert ended.code == 0, ended.everything
    assert f"2 hosts ready; the ranks meet at {hosts[0].address}" in ended.stdout


def test_a_setup_line_that_fails_on_a_host_is_named_before_anything_starts(folder: Path, hosts: tuple[Host, ...]) -> None:
    line = "test $(hostname) != host1"
    ended = preflight(folder, hosts[:2], f"launcher.setup=['{line}']", "output=json")
    finding = only_finding(ended)
    assert (finding["rule"], finding["field"]) == ("host-setup", "launcher.setup")
    assert finding["message"].startswith("host1: ") and line in finding["message"]


def test_ctrl_c_leaves_no_process(folder: Path, hosts: tuple[Host, ...]) -> None:
    hosts[1].cut()
    argv = words(folder, hosts[:2], "launcher.connect_seconds=100")
    started = hosts[0].start(*argv, cwd=folder, log=folder / "log")
    eventually(lambda: any("BatchMode=yes" in command_line(process) for process in hosts[0].processes()), within=60, what="ssh")
    started.signal(signal.SIGINT)
    assert started.wait(60) == 130
    assert not left_on(hosts)


def test_the_ranks_of_all_hosts_reduce_and_each_host_has_its_bandwidth(folder: Path, hosts: tuple[Host, ...]) -> None:
    words = ("preflight.collective=true", f"launcher.environment.GLOO_SOCKET_IFNAME={INTERFACE}", "output=json")
    ended = preflight(folder, hosts, *words)
    assert ended.code == 0, ended.everything
    measured = json.loads(ended.stdout)["collective"]
    assert measured["overall"] > 0
    assert measured["within"] == dict.fromkeys(("host0", "host1", "host2"))
    assert list(measured["between"]) == ["host0", "host1", "host2"]
    assert all(value > 0 for value in measured["between"].values())
    assert [path.name for path in folder.iterdir()] == ["hostfile"]
    assert not left_on(hosts)


def test_ranks_that_cannot_reduce_stop_the_run_before_it_starts(folder: Path, hosts: tuple[Host, ...]) -> None:
    words = ("preflight.collective=true", "launcher.environment.GLOO_SOCKET_IFNAME=nosuch0", "output=json")
    finding = only_finding(preflight(folder, hosts[:2], *words))
    assert (finding["rule"], finding["field"]) == ("collective", "preflight.collective")
    assert "nosuch0" in finding["message"]
    assert [path.name for path in folder.iterdir()] == ["hostfile"]
