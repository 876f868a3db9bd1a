"""Are the hosts of a plan ready for it: look at them, and plan anew with what they really have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import RenderableType

from orchestrator.commands.collective import check_collective
from orchestrator.commands.planned import fixes_for, plan_run
from orchestrator.commands.result import HOST_NOT_READY, OK, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, has_error
from orchestrator.launch.preflight.bandwidth import Bandwidths, bandwidth_findings
from orchestrator.launch.preflight.host_check import ClusterCheck, check_cluster
from orchestrator.launch.preflight.judgement import launcher_findings
from orchestrator.launch.preflight.measured import busy_memory, capacity_remarks, measured_hosts
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.fixes import Fix
from orchestrator.planning.plan import Plan
from orchestrator.report import preflight as report
from orchestrator.report import text


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the hosts are ready: how each was found, and the plan with what they really have."""

    check: ClusterCheck
    plan: Plan
    """Made anew from what was measured."""
    fixes: tuple[Fix, ...]
    """What would fit, where the new plan does not."""
    bandwidths: Bandwidths | None = None
    """Of all-reduces over the ranks, where they were asked for."""

    @property
    def is_ready(self) -> bool:
        """Whether a run may start."""
        return self.check.is_ready and self.plan.fits

    @property
    def findings(self) -> list[Finding]:
        """What is to be said about the hosts; equal findings of several hosts are one, which names them."""
        alone = len(self.check.hosts) == 1
        hosts = [group.finding if alone else group.with_hosts() for group in self.check.joined]
        return [*self.check.findings, *hosts]

    def to_dict(self) -> dict[str, Any]:
        """The object of ``preflight output=json``."""
        refused = [] if self.plan.fits else list(self.plan.findings)
        return {
            "verdict": "ready" if self.is_ready else "host not ready",
            "hosts": {check.host.name: report.host_entry(check) for check in self.check.hosts},
            "findings": [finding.to_dict() for finding in [*self.findings, *refused]],
            "master_addr": self.check.master_address,
            "collective": None if self.bandwidths is None else self.bandwidths.to_dict(),
            "memory": None if self.plan.memory is None else self.plan.memory.to_dict(),
            "fixes": [fix.to_dict() for fix in self.fixes],
        }

    def result(self) -> CommandResult:
        """What ``preflight`` answers, and ``launch`` when the hosts are not ready."""
        parts: list[RenderableType] = report.preflight_report(self.check, self.bandwidths)
        if not self.plan.fits:
            parts += [*text.plan_report(self.plan), *text.fixes_report(self.plan, self.fixes)]
        code = OK if self.is_ready else HOST_NOT_READY
        return CommandResult(
            exit_code=code, payload=self.to_dict(), text=[*parts, report.verdict(self.check, fits=self.plan.fits)]
        )


def readiness(config: RunConfig, plan: Plan) -> Readiness:
    """Look at the hosts of a plan that fits, and make it anew from what they have. Paths of ``config`` are absolute."""
    assert plan.cluster is not None and plan.memory is not None
    missing = launcher_findings(config, plan.cluster)
    if has_error(missing):
        return Readiness(check=ClusterCheck(hosts=(), master_address=None, findings=tuple(missing)), plan=plan, fixes=())
    disk = plan.memory.checkpoints
    check = check_cluster(config, plan.cluster.hosts, checkpoint_bytes=disk.checkpoint_bytes if disk.at_once else 0)
    facts = {entry.host.name: entry.facts for entry in check.hosts if entry.facts is not None}
    hosts = measured_hosts(config, plan.cluster, facts)
    measured = plan_run(config, hosts=hosts)
    remarks: defaultdict[str, list[Finding]] = defaultdict(list)
    for host, finding in _remarks(config, plan, measured, check, hosts):
        remarks[host].append(finding)
    fixes = fixes_for(config, measured, hosts=hosts)
    ready = Readiness(check=check.with_findings(remarks), plan=measured, fixes=fixes)
    return _with_collective(config, ready) if config.preflight.collective and ready.is_ready else ready


def _with_collective(config: RunConfig, ready: Readiness) -> Readiness:
    """The same with what an all-reduce over all ranks says: only hosts that are ready can try one."""
    cluster = ready.plan.cluster
    assert cluster is not None
    tried = check_collective(config, cluster, ready.check.master_address)
    if tried is None:
        return ready
    if tried.bandwidths is None:
        assert tried.failure is not None
        return replace(ready, check=replace(ready.check, findings=(*ready.check.findings, tried.failure)))
    by_host: defaultdict[str | None, list[Finding]] = defaultdict(list)
    for host, finding in bandwidth_findings(tried.bandwidths, cluster):
        by_host[host].append(finding)
    check = replace(ready.check, findings=(*ready.check.findings, *by_host.pop(None, [])))
    slow = {host: findings for host, findings in by_host.items() if host is not None}
    return replace(ready, check=check.with_findings(slow), bandwidths=tried.bandwidths)


def _remarks(
    config: RunConfig, plan: Plan, measured: Plan, check: ClusterCheck, hosts: Sequence[Host]
) -> Iterator[tuple[str, Finding]]:
    """Where there is less than was planned with, by host."""
    assert plan.cluster is not None
    yield from capacity_remarks(config, plan.cluster, hosts)
    if measured.fits and measured.memory is not None:
        needed = {entry.host: entry.peak_bytes for entry in measured.memory.host}
        facts = {entry.host.name: entry.facts for entry in check.hosts if entry.facts is not None}
        yield from busy_memory(facts, needed)
