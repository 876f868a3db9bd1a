"""The plan of a configuration, with what only this machine knows: the hostfile's text, the size of its RAM, the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.commands.data_counts import with_data
from orchestrator.commands.own_script import script_findings
from orchestrator.commands.pretrained import gives_the_shape, pretrained_findings, spoken_of_pretrained, with_pretrained_shape
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, has_error
from orchestrator.launch.host_filter import filtered_hosts
from orchestrator.launch.hostfile import read_hostfile
from orchestrator.launch.machine import memory_limit_bytes
from orchestrator.launch.slurm.allocation import allocated_hosts
from orchestrator.planning.cluster_spec import Host, count_findings, named_hosts
from orchestrator.planning.fixes import Fix, find_fixes
from orchestrator.planning.plan import Plan, make_plan


def plan_run(config: RunConfig, *, hosts: tuple[Host, ...] | None = None) -> Plan:
    """Plan ``config``; everything that is wrong with it is among the plan's findings.

    ``hosts``: those that were looked at, with what was measured there, in place of those that ``config`` names.
    """
    hosts, findings = hosts_of(config) if hosts is None else (hosts, [])
    shaped = with_pretrained_shape(config)
    plan = make_plan(shaped, hosts=hosts, machine_memory_bytes=memory_limit_bytes(), earlier_findings=findings)
    if gives_the_shape(config):
        plan = replace(plan, findings=tuple(spoken_of_pretrained(plan.findings)))
    plan = plan.with_findings([*pretrained_findings(shaped, plan.model), *script_findings(config)])
    return with_data(config, plan)


def fixes_for(config: RunConfig, plan: Plan, *, hosts: tuple[Host, ...] | None = None) -> tuple[Fix, ...]:
    """The smallest changes that make an infeasible plan fit; none for a plan that fits or is invalid."""
    if hosts is None:
        hosts, _ = hosts_of(config)
    return find_fixes(with_pretrained_shape(config), plan, hosts=hosts, machine_memory_bytes=memory_limit_bytes())


def hosts_of(config: RunConfig) -> tuple[tuple[Host, ...] | None, list[Finding]]:
    """The hosts that are named, less what the filter leaves out; ``None`` when only their number is given."""
    cluster = config.cluster
    hosts, findings = allocated_hosts(config)
    if cluster.hostfile is not None:
        hosts, findings = read_hostfile(Path(cluster.hostfile))
    if (cluster.include is None and cluster.exclude is None) or has_error(findings):
        return hosts or None, findings
    if hosts is None and not count_findings(cluster):
        hosts = named_hosts(cluster.hosts, cluster.devices_per_host)
    if hosts is not None:
        hosts, problems = filtered_hosts(hosts, include=cluster.include, exclude=cluster.exclude)
        findings += problems
    return hosts or None, findings
