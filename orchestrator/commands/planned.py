"""The plan of a configuration, with what only this machine knows: the hostfile's text and the size of its RAM."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding
from orchestrator.launch.hostfile import read_hostfile
from orchestrator.launch.machine import memory_limit_bytes
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.fixes import Fix, find_fixes
from orchestrator.planning.plan import Plan, make_plan


def plan_run(config: RunConfig) -> Plan:
    """Plan ``config``; everything that is wrong with it is among the plan's findings."""
    hosts, findings = _hosts(config)
    return make_plan(config, hosts=hosts, machine_memory_bytes=memory_limit_bytes(), earlier_findings=findings)


def fixes_for(config: RunConfig, plan: Plan) -> tuple[Fix, ...]:
    """The smallest changes that make an infeasible plan fit; none for a plan that fits or is invalid."""
    hosts, _ = _hosts(config)
    return find_fixes(config, plan, hosts=hosts, machine_memory_bytes=memory_limit_bytes())


def _hosts(config: RunConfig) -> tuple[tuple[Host, ...] | None, list[Finding]]:
    if config.cluster.hostfile is None:
        return None, []
    hosts, findings = read_hostfile(Path(config.cluster.hostfile))
    return hosts or None, findings
