"""Rules about the hosts."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.findings import Finding, Severity, warning
from orchestrator.planning.rules.registry import Fact, RuleContext, rule


@rule("mixed-slots", "hosts with unequal numbers of devices", Severity.warning, Fact.cluster)
def mixed_slots(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed numbers the ranks host by host: with unequal hosts, groups that should stay inside one host cross hosts."""
    slots = sorted({host.slots for host in context.cluster.hosts})
    if len(slots) > 1:
        yield warning(
            "mixed-slots",
            "cluster.hostfile",
            f"hosts have unequal numbers of slots: {', '.join(map(str, slots))}. Ranks are counted on from host to host, so "
            "tensor-parallel groups and stages begin at other devices on each, and RAM and network are loaded unequally",
            f"give every host slots={slots[0]}, or leave devices out with cluster.exclude",
        )
