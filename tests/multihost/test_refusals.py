"""What is wrong before a run starts: host and reason are named, and no rank is started anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.multihost.job import Ending, ending, start
from tests.multihost.rig import HOOKS, NVME, Host, Rig, eventually
from tests.multihost.table import FaultTable

NOT_READY = 3
PORT = 23456
SECONDS = 120.0
LISTEN = f"import socket, time; taken = socket.create_server(('', {PORT})); print('taken', flush=True); time.sleep(1000)"


@pytest.fixture
def folder(rig: Rig, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own that all hosts see."""
    return rig.shared / request.node.name


def refused(folder: Path, hosts: tuple[Host, ...], *words: str) -> Ending:
    """Start a run that must not start."""
    job = start(folder, hosts, *words)
    ended = ending(job, lambda: None, within=SECONDS)
    assert not list(folder.glob("run/attempts/*/ranks/*"))
    return ended


def test_a_name_that_does_not_resolve(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    folder.mkdir()
    (folder / "wrong").write_text("host0 slots=1\nhost9 slots=1\n")
    ended = refused(folder / "job", hosts[:2], f"cluster.hostfile={folder / 'wrong'}")
    faults.judge("a name that does not resolve", 2, ended, code=NOT_READY, told=("host9.*resolve",))


def test_sshd_is_stopped(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """On three hosts; the two that are well are looked at all the same."""
    hosts[1].stop_sshd()
    ended = refused(folder, hosts)
    faults.judge("sshd stopped", 3, ended, code=NOT_READY, told=("host1.*refused",))


def test_another_version_of_torch(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    installed = hosts[1].path(HOOKS) / "torch-2.9.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    ended = refused(folder, hosts[:2])
    faults.judge("another torch", 2, ended, code=NOT_READY, told=(r"error: torch: .*host1.*2\.9\.1",))


def test_a_path_on_nvme_that_is_missing(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    hosts[0].path(NVME / "swap").mkdir()
    words = ("zero=stage3", "offload=optimizer_nvme", f"offload.nvme_path={NVME / 'swap'}")
    ended = refused(folder, hosts[:2], *words)
    faults.judge("NVMe path missing", 2, ended, code=NOT_READY, told=(rf"host1.*{NVME}/swap",))


def test_too_little_memory(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    with hosts[1].memory(mib=900):
        ended = refused(folder, hosts[:2])
    faults.judge("too little memory", 2, ended, code=NOT_READY, told=(r"host1.*(memory|RAM)", r"MiB"))


def test_the_master_port_is_taken(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    folder.mkdir()
    other = hosts[0].start(sys.executable, "-c", LISTEN, cwd=folder, log=folder / "listen.log")
    eventually(lambda: "taken" in other.printed, within=30, what="somebody listens")
    ended = refused(folder / "job", hosts[:2], f"launcher.master_port={PORT}")
    faults.judge("master port taken", 2, ended, code=NOT_READY, told=(rf"host0.*{PORT}",))
