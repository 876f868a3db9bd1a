"""The Slurm job that this process runs in, and the hosts and devices that it has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.config.enums import Accelerator, LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error
from orchestrator.launch.slurm.job import SlurmError, call_slurm
from orchestrator.planning.cluster_spec import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job that this process runs in."""

    job_id: str
    host_list: str
    """As Slurm abbreviates them: ``gpu[1-4,7]``."""
    gpus_on_host: int | None
    """GPUs that the job has on this host; None where none were asked for."""
    visible_gpus: str
    """``CUDA_VISIBLE_DEVICES`` as Slurm sets it on this host; empty where it does not."""
    restarts: int
    """How often the job has been put back into the queue."""

    def hosts(self) -> list[str]:
        """The hosts by name, in Slurm's order.

        Raises:
            SlurmError: ``scontrol`` cannot be asked.
        """
        return call_slurm("scontrol", "show", "hostnames", self.host_list).split()


def current_allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation that this process runs in: a batch job, ``salloc``, or a step of either; None outside of any."""
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        return None
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    return Allocation(
        job_id=environment["SLURM_JOB_ID"],
        host_list=environment["SLURM_JOB_NODELIST"],
        gpus_on_host=int(gpus) if gpus.isdigit() else None,
        visible_gpus=environment.get("CUDA_VISIBLE_DEVICES", ""),
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


def allocated_hosts(config: RunConfig) -> tuple[tuple[Host, ...] | None, list[Finding]]:
    """The hosts of the allocation for ``launcher=slurm``, and what is wrong with them; None where there is no allocation."""
    allocation = current_allocation()
    if config.launcher.backend is not LauncherBackend.slurm or allocation is None:
        return None, []
    slots = config.cluster.devices_per_host
    findings = list(_findings(config, allocation))
    if findings:
        return None, findings
    try:
        names = allocation.hosts()
    except SlurmError as problem:
        fix = "the programs of Slurm must be there on the hosts of a job as well"
        return None, [error("slurm-hosts", "launcher.backend", f"the hosts of job {allocation.job_id}: {problem}", fix)]
    return tuple(Host(name=name, slots=slots) for name in names), []


def _findings(config: RunConfig, allocation: Allocation) -> Iterator[Finding]:
    """Whether this host, the first of the job, has the devices that are configured, where DeepSpeed's launcher finds them."""
    if config.launcher.detach:
        message = f"the run ends with job {allocation.job_id}, in which this launch starts it"
        fix = "launcher.detach=false; from outside of a job, launcher=slurm submits one, which needs no shell"
        yield error("detach", "launcher.detach", message, fix)
    slots, gpus, visible = config.cluster.devices_per_host, allocation.gpus_on_host, allocation.visible_gpus
    if config.cluster.accelerator is not Accelerator.cuda:
        return
    if gpus is not None and gpus < slots:
        message = f"job {allocation.job_id} has {gpus} GPUs on a host, and {slots} devices are configured"
        fix = f"cluster.devices_per_host={gpus}, or ask for more: launcher.slurm.options.gpus-per-node={slots}"
        yield error("slurm-devices", "cluster.devices_per_host", message, fix)
    elif visible and visible.split(",")[:slots] != [str(number) for number in range(slots)]:
        message = (
            f"job {allocation.job_id} has the GPUs {visible} of this host, which shows it the others as well, and DeepSpeed's"
            " launcher counts from 0: it would take those of another job"
        )
        fix = "take whole hosts (no cpus-per-task or mem in launcher.slurm.options), or have Slurm set up to hide the others"
        yield error("slurm-devices", "CUDA_VISIBLE_DEVICES", message, fix)


def submits_a_job(config: RunConfig) -> bool:
    """Whether a launch of ``config`` submits a job; inside an allocation it starts there."""
    return config.launcher.backend is LauncherBackend.slurm and current_allocation() is None
