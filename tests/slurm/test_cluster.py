"""The Slurm that the tests use is one."""

from __future__ import annotations

from tests.multihost.rig import eventually, left_on
from tests.slurm.cluster import SlurmCluster


def test_a_command_runs_on_both_nodes(slurm: SlurmCluster) -> None:
    shown = slurm.run("srun", "--nodes=2", "--label", "hostname")
    assert sorted(shown.splitlines()) == [f"{task}: {node.name}" for task, node in enumerate(slurm.nodes)]


def test_a_job_comes_back_after_its_requeue(slurm: SlurmCluster) -> None:
    script = slurm.shared / "job"
    script.write_text('#!/bin/sh\n[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }\n')
    job = slurm.run("sbatch", "--parsable", "--nodes=2", f"--output={slurm.shared}/out", "--requeue", str(script)).strip()
    eventually(lambda: slurm.state_of(job) == "COMPLETED", within=180, what=f"job {job} is completed")
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job)
    assert not left_on(slurm.nodes)
