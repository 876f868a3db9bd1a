"""``preflight``: can every host of the run take part in it? ``launch`` asks the same before it starts."""

from __future__ import annotations

from orchestrator.commands.paths import with_absolute_paths
from orchestrator.commands.planned import plan_run
from orchestrator.commands.readiness import readiness
from orchestrator.commands.result import CommandResult
from orchestrator.commands.validate import refusal
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.command import host_findings
from orchestrator.launch.slurm.allocation import submits_a_job

HELP = """Look at every host of the run before anything starts: reachable, alike, devices, memory, disks, files, ports, clocks.

Nothing is installed or left on the hosts. What was measured makes a new plan, with the lower of configured and measured sizes.

Examples:
  orchestrator preflight cluster.hostfile=hostfile
  orchestrator preflight experiment=llama_2_70b_64_hosts cluster.hostfile=hostfile run_dir=/shared/runs/llama
  orchestrator preflight cluster.hostfile=hostfile preflight.collective=true output=json"""


def run(config: RunConfig) -> CommandResult:
    """Look at the hosts of ``config``; a plan that cannot run is refused before that.

    Raises:
        ConfigurationError: the hosts are not known here.
    """
    if submits_a_job(config):
        message = "the hosts of a Slurm job are known in its allocation only"
        fix = "launch looks at them there; beforehand: salloc --nodes=N, and in it orchestrator preflight launcher=slurm"
        raise ConfigurationError([error("slurm-hosts", "launcher.backend", message, fix)])
    config = with_absolute_paths(config)
    plan = plan_run(config)
    plan = plan.with_findings(list(host_findings(config, plan.cluster)) if plan.cluster else [])
    if not plan.fits:
        return refusal(config, plan)
    return readiness(config, plan).result()
