"""The README's section on several hosts, followed to the letter: two hosts, a hostfile, a trained model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.multihost.job import START_SECONDS
from tests.multihost.rig import Ended, Rig

README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True)
class Followed:
    """The section's shell blocks in their order, with what they printed, and the directory that hosts share."""

    ended: list[Ended]
    shared: Path
    left: list[str]


def blocks() -> list[str]:
    """What the section has a reader type."""
    section = README.read_text().partition("### Several hosts\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)


@pytest.fixture(scope="module")
def followed(rig: Rig) -> Followed:
    """Names of hosts and the shared directory are the reader's own; all else is typed as it is there."""
    shared = rig.shared / "readme"
    shared.mkdir()
    own = {"node-a": "host0", "node-b": "host1", "/shared": str(shared)}
    here = shared
    ended = []
    for block in blocks():
        typed = re.sub("|".join(own), lambda name: own[name[0]], block)
        ended.append(rig.hosts[0].run("bash", "-euc", typed, cwd=here, timeout=START_SECONDS))
    left = [" ".join(process.cmdline()) for host in rig.hosts for process in host.processes()]
    for host in rig.hosts:
        host.clear()
    return Followed(ended, shared, left)


def test_every_block_does_what_it_says(followed: Followed) -> None:
    assert len(followed.ended) >= 4
    for block, ended in zip(blocks(), followed.ended, strict=True):
        assert ended.code == 0, f"{block}\n{ended.everything}"


def test_preflight_looked_at_both_hosts(followed: Followed) -> None:
    assert "2 hosts ready" in followed.ended[1].everything


def test_a_model_comes_out(followed: Followed) -> None:
    assert (followed.shared / "runs" / "first" / "export" / "model.safetensors").stat().st_size > 0


def test_the_detached_run_was_seen_and_stopped(followed: Followed) -> None:
    assert "ended: stopped" in followed.ended[-1].stdout
    assert not followed.left
