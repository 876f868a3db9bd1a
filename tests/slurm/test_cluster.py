"""The Slurm that the tests use is one."""

from __future__ import annotations

import time
from pathlib import Path

from tests.slurm.cluster import NODES, SlurmCluster


def test_a_command_runs_on_both_nodes(slurm: SlurmCluster) -> None:
    shown = slurm.run("srun", "--nodes=2", "--label", "sh", "-c", "echo $SLURMD_NODENAME $(hostname)")
    assert [line.split()[1] for line in sorted(shown.splitlines())] == list(NODES)


def test_a_job_comes_back_after_its_requeue(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text('#!/bin/sh\n[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }\n')
    job = slurm.run("sbatch", "--parsable", "--nodes=2", f"--output={tmp_path}/out", "--requeue", str(script)).strip()
    deadline = time.monotonic() + 60
    while slurm.state_of(job) != "COMPLETED":
        assert time.monotonic() < deadline, slurm.run("scontrol", "show", "job", job) + slurm.logs()
        time.sleep(0.5)
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job)
    assert not slurm.processes()
