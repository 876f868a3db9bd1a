"""One Slurm for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import SlurmCluster, running_cluster, why_no_slurm


@pytest.fixture(scope="session")
def running_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of a login node and two others for the whole session."""
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    with running_cluster(tmp_path_factory.mktemp("hosts"), tmp_path_factory.mktemp("shared")) as cluster:
        yield cluster


@pytest.fixture
def slurm(running_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The Slurm of the session, without any job before the test and after it."""
    yield running_slurm
    running_slurm.clear()
