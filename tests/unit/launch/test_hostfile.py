"""Hostfiles: what is read from them, and what is refused by its line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.findings import Severity
from orchestrator.launch.hostfile import LocalNames, local_names, parse_hostfile, read_hostfile
from orchestrator.planning.cluster_spec import Host

HERE = LocalNames(
    own=frozenset({"launch-box", "10.0.0.8"}),
    addresses={"node-a": "10.0.0.1", "node-a.fabric": "10.0.0.1", "node-b": "10.0.0.2"},
)


def parsed(text: str) -> tuple[tuple[Host, ...], list[tuple[str, str]]]:
    """The hosts, and rule and message of each finding."""
    hosts, findings = parse_hostfile(text, source="hostfile", identify=HERE.identify)
    assert all(finding.fix and finding.field == "cluster.hostfile" for finding in findings)
    return hosts, [(finding.rule, finding.message) for finding in findings]


def read(tmp_path: Path, text: str) -> tuple[tuple[Host, ...], list[str]]:
    path = tmp_path / "hostfile"
    path.write_text(text, encoding="utf-8")
    hosts, findings = read_hostfile(path)
    return hosts, [finding.rule for finding in findings]


def test_the_order_of_lines_is_the_order_of_ranks(tmp_path: Path) -> None:
    hosts, problems = read(tmp_path, "# cluster\n\nb slots=4\n  a   slots=8  # old\n")
    assert hosts == (Host(name="b", slots=4), Host(name="a", slots=8))
    assert not problems


@pytest.mark.parametrize(
    ("line", "rule", "says", "fix"),
    [
        ("a slots=4x", "hostfile-line", "something else", "write a slots=4"),
        ("a slots=4 gpus", "hostfile-line", "it is not HOST slots=N", "write a slots=4"),
        ("a slots = 4", "hostfile-line", "spaces round =", "write a slots=4"),
        ("a:4", "hostfile-line", "colon", "write a slots=4"),
        ("a", "hostfile-line", "HOST slots=N", "write HOST slots=N"),
        ("a SLOTS=4", "hostfile-line", "HOST slots=N", "write a slots=4"),
        ("node-a lots=8", "hostfile-line", "HOST slots=N", "write node-a slots=8"),
        ("a max_slots=8 slots=4", "hostfile-line", "max_slots", "write a slots=4"),
        ("a slots=", "hostfile-line", "HOST slots=N", "write HOST slots=N"),
        ("a slots=-1", "hostfile-line", "HOST slots=N", "write HOST slots=N"),
        ("slots=4", "hostfile-line", "HOST slots=N", "write"),
        ("a slots=0", "hostfile-slots", "no part", "remove the line"),
        ("a slots=99999999999999999999", "hostfile-slots", "more than 1024", "write HOST"),
        ("::2 slots=4", "hostfile-address", "IPv6", "/etc/hosts"),
        ("fe80::1%eth0 slots=4", "hostfile-address", "IPv6", "/etc/hosts"),
        ("user@a slots=4", "hostfile-address", "@", "~/.ssh/config"),
        ("a,b slots=4", "hostfile-address", "no host name", "letters"),
        ("-a slots=4", "hostfile-address", "no host name", "letters"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line: str, rule: str, says: str, fix: str) -> None:
    _, problems = parsed(f"ok slots=2\n{line}\n")
    assert [name for name, _ in problems] == [rule]
    message = problems[0][1]
    assert "hostfile:2" in message
    assert line in message
    assert says in message
    _, findings = parse_hostfile(line, source="hostfile", identify=HERE.identify)
    assert fix in findings[0].fix


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a", "a"),
        ("Node-C", "node-c"),
        ("node-c", "node-c."),
        ("node-a", "10.0.0.1"),
        ("node-a", "node-a.fabric"),
        ("localhost", "127.0.0.1"),
        ("localhost", "launch-box"),
        ("launch-box", "10.0.0.8"),
    ],
)
def test_one_machine_under_two_names_is_refused(first: str, second: str) -> None:
    _, problems = parsed(f"{first} slots=2\nother slots=2\n{second} slots=2\n")
    duplicates = [message for rule, message in problems if rule == "hostfile-duplicate"]
    assert len(duplicates) == 1
    assert "hostfile:3" in duplicates[0]
    assert "line 1" in duplicates[0]


def test_different_machines_are_not_taken_for_one() -> None:
    _, problems = parsed("node-a slots=8\nnode-b slots=8\nnode-c slots=8\n10.0.0.9 slots=8\nnode-c.other slots=8\n")
    assert problems == []


def test_loopback_beside_other_hosts_is_refused_and_alone_is_not() -> None:
    _, problems = parsed("localhost slots=4\nnode-b slots=4\n")
    assert [rule for rule, _ in problems] == ["hostfile-loopback"]
    assert "hostfile:1: localhost" in problems[0][1]
    assert parsed("localhost slots=4\n") == ((Host(name="localhost", slots=4),), [])


def test_every_problem_is_reported_at_once() -> None:
    _, problems = parsed("node-a slots=4x\nlocalhost slots=2\n127.0.0.1 slots=2\nnode-b slots=0\nnode-c slots=2\n")
    assert [(rule, message.split(":")[1]) for rule, message in problems] == [
        ("hostfile-line", "1"),
        ("hostfile-slots", "4"),
        ("hostfile-duplicate", "3"),
        ("hostfile-loopback", "2"),
        ("hostfile-loopback", "3"),
    ]


def test_a_byte_order_mark_is_not_part_of_a_name_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("\ufeffa slots=2\n", encoding="utf-8")
    hosts, findings = read_hostfile(path)
    assert hosts[0].name == "a"
    assert [(finding.rule, finding.severity) for finding in findings] == [("hostfile-encoding", Severity.warning)]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ((), ["hostfile-empty"])


def test_a_missing_file_is_refused_and_never_a_local_run(tmp_path: Path) -> None:
    hosts, findings = read_hostfile(tmp_path / "nowhere")
    assert hosts == ()
    assert [finding.rule for finding in findings] == ["hostfile-missing"]
    assert "cluster.hosts" in findings[0].fix


@pytest.mark.parametrize("kind", ["folder", "binary"])
def test_what_is_no_text_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "hostfile"
    path.mkdir() if kind == "folder" else path.write_bytes(b"\xff\xfe\x00a")
    hosts, findings = read_hostfile(path)
    assert hosts == ()
    assert [finding.rule for finding in findings] == ["hostfile-unreadable"]


def test_what_this_machine_knows_of_itself() -> None:
    known = local_names()
    here = {known.identify(name) for name in ("localhost", "127.0.0.1", "::1", "LOCALHOST.", socket.gethostname())}
    assert len(here) == 1
    assert known.identify("some-other-machine") not in here
