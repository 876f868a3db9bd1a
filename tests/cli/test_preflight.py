"""``orchestrator preflight`` over an ``ssh`` that a test writes: verdict, exit code, and a table that stays readable."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.load import load_config
from orchestrator.launch.preflight import probe
from orchestrator.launch.preflight.fan_out import INJECTED_FACTS, ask_all, run, script
from tests.cli.command_line import Ended, orchestrator
from tests.fake_ssh import FakeSsh, ready_host, running_children

WORDS = ("model=llama_3_1b", "cluster=dgx_h100", "zero=stage1", "training=default", "run_dir=run", "data=synthetic")


@pytest.fixture
def ssh(tmp_path: Path) -> FakeSsh:
    (tmp_path / "bin").mkdir()
    fake = FakeSsh(tmp_path / "bin")
    fake.reaches("10.0.0.1")
    return fake


def preflight(ssh: FakeSsh, *words: str, verb: str = "preflight", hosts: list[str]) -> Ended:
    folder = ssh.folder.parent
    (folder / "hostfile").write_text("".join(f"{host} slots=8\n" for host in hosts))
    environment = {"PATH": f"{ssh.folder}:{os.environ['PATH']}"}
    return orchestrator(verb, *WORDS, "cluster.hostfile=hostfile", *words, cwd=folder, environment=environment)


def with_address(name: str, number: int, **changes: Any) -> dict[str, Any]:
    return ready_host(name, addresses=[{"interface": "eth0", "address": f"10.0.0.{number}", "prefix": 24}], **changes)


def two_hosts(ssh: FakeSsh, **of_second: Any) -> list[str]:
    ssh.host("node1", facts=with_address("node1", 1))
    ssh.host("node2", facts=with_address("node2", 2, **of_second))
    return ["node1", "node2"]


def test_hosts_that_are_ready(ssh: FakeSsh) -> None:
    hosts = two_hosts(ssh)
    ended = preflight(ssh, hosts=hosts)
    assert ended.code == 0, ended.everything
    assert "2 hosts ready; the ranks meet at 10.0.0.1" in ended.stdout
    ended = preflight(ssh, "output=json", hosts=hosts)
    assert ended.json["verdict"] == "ready"
    assert ended.json["master_addr"] == "10.0.0.1"
    assert list(ended.json["hosts"]) == hosts
    assert ended.json["hosts"]["node2"]["facts"]["num_cores"] == 96
    assert not (ssh.folder.parent / "run").exists()
    assert not list(ssh.folder.parent.glob(".orchestrator_*"))


TIGHT = [{"name": "H100", "total_bytes": 80 << 30, "free_bytes": 3 << 30}] * 8


@pytest.mark.parametrize(
    ("changes", "rule", "told"),
    [
        ({"packages": {**ready_host("")["packages"], "torch": "2.12.0+cu128"}}, "hosts-differ", "2.12.0"),
        ({"shared": False}, "run-directory-shared", "another folder"),
        ({"accelerators": {"driver": "570.1", "cuda": "12.8", "devices": TIGHT}}, "device-memory", "node2"),
        ({"memory": {"total_bytes": 1 << 40, "limit_bytes": 9 << 30, "available_bytes": 9 << 30}}, "host-memory", "9.00 GiB"),
    ],
)
def test_a_host_that_is_not_ready_is_named(changes: dict[str, Any], rule: str, told: str, ssh: FakeSsh) -> None:
    ended = preflight(ssh, "output=json", hosts=two_hosts(ssh, **changes))
    assert ended.code == 3, ended.everything
    assert ended.json["verdict"] == "host not ready"
    (finding,) = [finding for finding in ended.json["findings"] if finding["rule"] == rule]
    assert "node2" in finding["message"] and told in finding["message"]


def test_launch_stops_where_a_host_is_not_ready(ssh: FakeSsh) -> None:
    ended = preflight(ssh, "output=json", verb="launch", hosts=two_hosts(ssh, shared=False))
    assert ended.code == 3, ended.everything
    assert ended.json["verdict"] == "host not ready"
    assert not (ssh.folder.parent / "run").exists()


def test_a_first_host_that_is_not_reached_is_named(ssh: FakeSsh) -> None:
    hosts = two_hosts(ssh)
    (ssh.folder / "connect.answer").write_text(probe.MARK + json.dumps({"10.0.0.1": "No route to host"}) + "\n")
    ended = preflight(ssh, hosts=hosts)
    assert ended.code == 3
    assert "node1 is not reached at 10.0.0.1:" in ended.stdout and "No route to host" in ended.stdout


def test_what_does_not_fit_comes_with_what_would(ssh: FakeSsh) -> None:
    devices = [{"name": "H100", "total_bytes": 80 << 30, "free_bytes": 14 << 30}] * 8
    hosts = two_hosts(ssh, accelerators={"driver": "570.1", "cuda": "12.8", "devices": devices})
    ended = preflight(ssh, hosts=hosts)
    assert ended.code == 3
    assert "as measured on node2" in ended.stdout
    assert "what would fit, the cheapest in speed first:\n" in ended.stdout
    assert ended.stdout.rstrip().endswith("the run does not fit on them as they are")


def test_a_configuration_that_cannot_run_is_refused_before_any_host_is_asked(ssh: FakeSsh) -> None:
    ended = preflight(ssh, "zero.stage=3", "parallelism.pipeline_parallel_size=2", hosts=["node1", "node2"])
    assert ended.code == 2, ended.everything


def test_preflight_none_asks_nobody(ssh: FakeSsh) -> None:
    ended = preflight(ssh, "preflight=none", "dry_run=true", verb="launch", hosts=["nowhere1", "nowhere2"])
    assert ended.code == 0, ended.everything


NUMBER = 500


@pytest.fixture
def many(ssh: FakeSsh) -> tuple[FakeSsh, list[str]]:
    """Hosts most of which are alike, and some with each kind of trouble."""
    hosts = [f"node{number:03}" for number in range(1, NUMBER + 1)]
    endings = {7: "dead", 8: "dead", 9: "dead", 77: "refused", 78: "refused", 200: "unknown", 300: "locked", 301: "bare"}
    for number, host in enumerate(hosts, start=1):
        facts = with_address(host, number)
        facts["memory"] = {**facts["memory"], "available_bytes": facts["memory"]["available_bytes"] - number}
        if number in (40, 41):
            facts["packages"] = {**facts["packages"], "torch": "2.12.0+cu128"}
        if number == 450:
            facts["accelerators"] = {**facts["accelerators"], "devices": facts["accelerators"]["devices"][:7]}
        ssh.host(host, kind=endings.get(number, "answers"), facts=facts)
    return ssh, hosts


def test_of_very_many_hosts_what_is_equal_is_said_once_and_the_odd_ones_are_listed(many: tuple[FakeSsh, list[str]]) -> None:
    ssh, hosts = many
    ended = preflight(ssh, hosts=hosts)
    assert ended.code == 3
    lines = ended.stdout.splitlines()
    assert len(lines) < 60, ended.stdout
    assert max(map(len, lines)) < 300
    for told in (
        "2.13.0+cu128",
        "node[040-041]: torch 2.12.0+cu128, where the others have torch 2.13.0+cu128",
        "node[007-009]: it cannot be reached (ssh: connect to host HOST port 22: Connection timed out)",
        "node[077-078]: no ssh server answers there",
        "node200: its name does not resolve",
        "node300: ssh is not let in",
        "node301: there is no Python at",
        "node450: 8 devices are configured, this host has 7",
        "11 hosts not ready: node[007-009,040-041,077-078,200,300-301,450]; 489 ready",
    ):
        assert told in ended.stdout, ended.stdout


def test_very_many_hosts_cost_no_more_processes_at_once_than_asked_for(
    many: tuple[FakeSsh, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, hosts = many
    monkeypatch.setenv("PATH", f"{ssh.folder}:{os.environ['PATH']}")
    monkeypatch.delenv(INJECTED_FACTS, raising=False)
    with running_children() as counts:
        answers = run(ask_all(hosts, script(probe, {}), load_config(["preflight.parallel=16"])))
    assert len(answers) == NUMBER
    assert 1 < max(counts) <= 16
