"""One Slurm for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import SlurmCluster, missing_programs, running_cluster


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[SlurmCluster]:
    """A Slurm of two nodes for the whole session."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"needs Slurm and munge (apt-get install slurm-wlm munge); missing: {', '.join(missing)}")
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(running_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The Slurm of the session without any job, before the test and after it."""
    running_slurm.cancel_everything()
    yield running_slurm
    running_slurm.cancel_everything()
