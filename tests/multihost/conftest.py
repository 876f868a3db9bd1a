"""The hosts, and the table of what was done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.multihost.rig import Host, Rig, build, why_not
from tests.multihost.table import FaultTable

ROOT = Path(__file__).parents[2]
NVME_MIB = (512, 256, 128)


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """host0, host1, host2."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    state = tmp_path_factory.mktemp("rig")
    built = build(state, tmp_path_factory.mktemp("shared"), NVME_MIB, root=ROOT)
    yield built
    built.close()


@pytest.fixture
def hosts(rig: Rig) -> Iterator[tuple[Host, ...]]:
    """The hosts, whole again and empty after the test."""
    yield rig.hosts
    for host in rig.hosts:
        host.mend()
        host.clear()
        host.start_sshd()


@pytest.fixture(scope="session")
def faults(report: Callable[[str], None]) -> Iterator[FaultTable]:
    """Takes what was done to runs, for the table at the end."""
    table = FaultTable()
    yield table
    if table.rows:
        report(f"\nfaults on several hosts\n{table}")
