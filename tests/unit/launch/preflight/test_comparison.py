"""Hosts beside each other: who is odd, how many are written short, and where the ranks can meet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.findings import Severity, error
from orchestrator.launch.preflight.comparison import odd_ones
from orchestrator.launch.preflight.facts import Accelerators, Content, Device, Folder, HostFacts, Project
from orchestrator.launch.preflight.joined import folded, joined
from orchestrator.launch.preflight.rendezvous import candidates

USUAL = HostFacts(
    python="3.11.7",
    packages={"torch": "2.13.0", "deepspeed": "0.19.8", "wandb": "0.31.0"},
    project=Project(version="0.1.0", path="/opt/orchestrator", digest="0123456789abcdef"),
    torch_cuda="12.8",
    accelerators=Accelerators(driver="570", cuda="12.8", devices=(Device(name="H100", total_bytes=1, free_bytes=1),) * 8),
    num_cores=96,
    files={"data.path": Content(path="/data", exists=True, readable=True, bytes=9, digest="abc")},
)
DISK = Folder(path="/nvme", exists=True, writable=True, file_system="xfs", total_bytes=9, free_bytes=9)


@pytest.mark.parametrize(
    ("odd", "field", "severity", "told"),
    [
        (replace(USUAL, python="3.12.1"), "Python", Severity.error, "3.12.1"),
        (replace(USUAL, packages={**(USUAL.packages or {}), "torch": "2.12.0"}), "torch", Severity.error, "2.12.0"),
        (replace(USUAL, packages={**(USUAL.packages or {}), "wandb": "0.30.0"}), "wandb", Severity.warning, "0.30.0"),
        (replace(USUAL, project=replace(USUAL.project, digest="fedcba98")), "orchestrator", Severity.error, "fedcba98"),
        (replace(USUAL, torch_cuda="12.6"), "CUDA of torch", Severity.error, "12.6"),
        (replace(USUAL, accelerators=replace(USUAL.accelerators, driver="550")), "driver", Severity.warning, "550"),
        (
            replace(USUAL, accelerators=replace(USUAL.accelerators, devices=USUAL.devices[:7])),
            "devices",
            Severity.warning,
            "7 x H100",
        ),
        (
            replace(USUAL, files={"data.path": replace(USUAL.files["data.path"], digest="xyz")}),
            "data.path",
            Severity.error,
            "xyz",
        ),
    ],
)
def test_the_odd_host_is_named_with_its_value_and_the_usual_one(
    odd: HostFacts, field: str, severity: Severity, told: str
) -> None:
    hosts = {"a": USUAL, "b": odd, "c": USUAL}
    ((host, finding),) = odd_ones(hosts)
    assert (host, finding.field, finding.severity) == ("b", field, severity)
    assert told in finding.message and finding.fix


def test_of_two_hosts_the_first_is_right() -> None:
    ((host, _),) = odd_ones({"a": USUAL, "b": replace(USUAL, python="3.12.1")})
    assert host == "b"


def test_what_is_not_known_or_may_differ_is_no_difference() -> None:
    unknown = HostFacts(num_cores=64)
    assert list(odd_ones({"a": USUAL, "b": unknown, "c": replace(USUAL, num_cores=12, open_files=9)})) == []


def test_a_disk_that_is_mounted_on_the_others_only_is_missed() -> None:
    mounted = replace(USUAL, folders={"offload.nvme_path": DISK})
    absent = replace(USUAL, folders={"offload.nvme_path": replace(DISK, exists=False)})
    ((host, finding),) = odd_ones({"a": mounted, "b": absent})
    assert (host, finding.rule) == ("b", "nvme-directory")
    assert list(odd_ones({"a": absent, "b": absent})) == []


def test_what_many_hosts_have_in_common_is_said_once() -> None:
    same = error("x", "f", "ssh to node says no", "mend it")
    findings = {f"node{number:02}": [error("x", "f", f"ssh to node{number:02} says no", "mend it")] for number in range(1, 31)}
    (group,) = joined({**findings, "other": []})
    assert group.hosts == tuple(findings)
    assert group.with_hosts() == error("x", "f", "node[01-30]: ssh to HOST says no", "mend it")
    (alone,) = joined({"n": [same]})
    assert alone.with_hosts().message == "n: ssh to node says no"


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["node1"], "node1"),
        (["a", "b"], "a, b"),
        ([f"n{number}" for number in range(8, 12)], "n[8-11]"),
        (["n01", "n02", "n03", "n07"], "n[01-03,07]"),
        (["n9", "n010"], "n[9,010]"),
        (["gpu-1.site", "gpu-2.site", "login"], "gpu-[1-2].site, login"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.1, 10.0.0.2"),
    ],
)
def test_many_names_are_written_short(names: list[str], short: str) -> None:
    assert folded(names) == short


def with_addresses(*addresses: tuple[str, int]) -> HostFacts:
    return replace(USUAL, addresses=addresses)


@pytest.mark.parametrize(
    ("first", "others", "expected"),
    [
        ([("10.0.0.1", 24)], [[("10.0.0.2", 24)]], ["10.0.0.1"]),
        ([("172.17.0.1", 16), ("10.0.0.1", 24)], [[("172.17.0.1", 16), ("10.0.0.2", 24)]], ["10.0.0.1"]),
        ([("192.168.5.1", 24), ("10.0.0.1", 24)], [[("10.0.0.2", 24)], [("10.0.0.3", 24)]], ["10.0.0.1", "192.168.5.1"]),
        ([("10.1.0.1", 24)], [[("10.2.0.1", 24)]], ["10.1.0.1"]),
        ([("10.0.0.1", 24)], [[("10.0.0.1", 24)]], []),
    ],
)
def test_the_address_to_meet_at_is_one_in_a_network_that_all_share(
    first: list[tuple[str, int]], others: list[list[tuple[str, int]]], expected: list[str]
) -> None:
    facts = {"first": with_addresses(*first)} | {f"n{index}": with_addresses(*entry) for index, entry in enumerate(others)}
    assert candidates(facts) == expected
