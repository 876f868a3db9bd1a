from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.launch.hostfile import read_hostfile
from orchestrator.planning.cluster_spec import Host


def read(tmp_path: Path, text: str) -> tuple[tuple[Host, ...], list[str]]:
    path = tmp_path / "hostfile"
    path.write_text(text, encoding="utf-8")
    hosts, findings = read_hostfile(path)
    return hosts, [finding.message for finding in findings]


def test_the_order_of_lines_is_the_order_of_ranks(tmp_path: Path) -> None:
    hosts, problems = read(tmp_path, "# cluster\n\nb slots=4\n  a   slots=8  # old\n")
    assert hosts == (Host(name="b", slots=4), Host(name="a", slots=8))
    assert not problems


def test_the_example_is_what_deepspeed_reads_from_it() -> None:
    from deepspeed.launcher.runner import fetch_hostfile

    example = Path(__file__).parents[3] / "hostfile.example"
    hosts, findings = read_hostfile(example)
    assert not findings
    assert {host.name: host.slots for host in hosts} == dict(fetch_hostfile(str(example)))


@pytest.mark.parametrize("line", ["a slots=4x", "a slots = 4", "a:4", "a", "a SLOTS=4", "a slots=0", "a max_slots=8 slots=4"])
def test_what_deepspeed_misreads_is_refused_by_line(tmp_path: Path, line: str) -> None:
    _, problems = read(tmp_path, f"ok slots=2\n{line}\n")
    assert len(problems) == 1
    assert "hostfile:2" in problems[0]
    assert line in problems[0]


def test_every_problem_is_reported(tmp_path: Path) -> None:
    _, problems = read(tmp_path, "a slots=2\nA slots=2\nb slots=x\n")
    assert len(problems) == 2


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path: Path) -> None:
    hosts, _ = read(tmp_path, "\ufeffa slots=2\n")
    assert hosts[0].name == "a"


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    hosts, problems = read(tmp_path, text)
    assert not hosts
    assert len(problems) == 1
