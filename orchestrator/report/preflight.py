"""How preflight tells people about many hosts: what is equal is said once, the odd ones are listed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.findings import Finding
from orchestrator.launch.preflight.bandwidth import Bandwidths, in_gb
from orchestrator.launch.preflight.comparison import traits, usual
from orchestrator.launch.preflight.facts import OPERATORS, PACKAGES, TOOLS, HostFacts
from orchestrator.launch.preflight.host_check import ClusterCheck, HostCheck
from orchestrator.launch.preflight.joined import JoinedFinding, folded
from orchestrator.report.text import findings_report
from orchestrator.units import format_bytes

_MOST_VALUES = 4
"""Values of one trait that are listed with their hosts."""
_MOST_OF_A_RULE = 4
"""Findings of one rule that are listed one by one."""
_MOST_CHARACTERS = 100
"""Of a list of hosts."""


def preflight_report(check: ClusterCheck, bandwidths: Bandwidths | None) -> list[RenderableType]:
    """The hosts in a table, the bandwidths between them, then everything that is to be said of them, the worst first."""
    facts = {entry.host.name: entry.facts for entry in check.hosts if entry.facts is not None}
    table = [_traits_table(facts)] if facts else []
    measured = [] if bandwidths is None else [_bandwidth_table(bandwidths)]
    return [*table, *measured, *findings_report(check.findings), *_joined_report(check)]


def verdict(check: ClusterCheck, *, fits: bool) -> Text:
    """The last line: how many hosts are ready, which are not, and whether the run fits on them as they are."""
    unready = [entry.host.name for entry in check.hosts if not entry.is_ready]
    if not check.hosts:
        return Text("no host was looked at", style="bold red")
    if not unready and not fits:
        return Text(f"{_count(len(check.hosts))} looked at: the run does not fit on them as they are", style="bold red")
    if not unready:
        met = f"; the ranks meet at {check.master_address}" if check.master_address is not None else ""
        return Text(f"{_count(len(check.hosts))} ready{met}", style="bold green")
    ready = len(check.hosts) - len(unready)
    return Text(f"{_count(len(unready))} not ready: {_shortened(unready)}; {ready} ready", style="bold red")


def machine_table(facts: HostFacts) -> RenderableType:
    """The facts of one machine, for ``doctor``."""
    table = _plain_table(facts.hostname or "this host", "")
    table.add_row("python", facts.python or "not known")
    for name in PACKAGES:
        table.add_row(name, (facts.packages or {}).get(name) or "not installed")
    table.add_row("cores", str(facts.num_cores))
    if facts.memory is not None:
        available, limit = (format_bytes(size) for size in (facts.memory.available_bytes, facts.memory.limit_bytes))
        table.add_row("memory", f"{available} of {limit} available")
    table.add_row("/dev/shm", f"{format_bytes(facts.shared_memory_bytes or 0)} free")
    for number, device in enumerate(facts.devices):
        free, total = (format_bytes(size or 0) for size in (device.free_bytes, device.total_bytes))
        table.add_row(f"device {number}", f"{device.name}, {free} of {total} free")
    if not facts.devices:
        table.add_row("devices", "no NVIDIA device answers")
    if facts.operators is not None:
        built = [name for name in OPERATORS if facts.operators.built[name]]
        table.add_row("DeepSpeed ops", f"{', '.join(built) or 'none built'} in {facts.operators.folder}")
    for name in TOOLS:
        table.add_row(name, (facts.tools or {}).get(name) or "not found")
    return table


def host_entry(entry: HostCheck) -> dict[str, Any]:
    """A host of ``output=json``; sizes are bytes, times seconds."""
    return {
        "ready": entry.is_ready,
        "seconds": round(entry.seconds, 3),
        "slots": entry.host.slots,
        "facts": None if entry.facts is None else asdict(entry.facts),
        "findings": [finding.to_dict() for finding in entry.findings],
    }


def _traits_table(facts: Mapping[str, HostFacts]) -> RenderableType:
    """Each trait with the value that all have, or with its values and their hosts."""
    table = _plain_table(_count(len(facts)), "", "on")
    for trait in traits(facts):
        values = {host: value for host, entry in facts.items() if (value := trait.value(entry)) is not None}
        for row, (value, hosts) in enumerate(_by_value(values)):
            on = _shortened(hosts)
            if len(hosts) == len(facts):
                on = "all"
            elif row == 0 and len(hosts) > 1:
                on = f"the other {len(hosts)}"
            table.add_row(trait.name, str(value), on)
    return table


def _bandwidth_table(measured: Bandwidths) -> RenderableType:
    """The overall bus bandwidth, and of the hosts the middle and the slowest."""
    table = _plain_table(f"all-reduce of {format_bytes(measured.bytes)}", "bus bandwidth", "slowest host")
    table.add_row("all ranks", in_gb(measured.overall), "-")
    for name, by_host in (("within a host", measured.within), ("between two hosts", measured.between)):
        known = {host: value for host, value in by_host.items() if value is not None}
        if known:
            slowest = min(known, key=lambda host: known[host])
            table.add_row(name, f"{in_gb(median(known.values()))} (median)", f"{slowest}: {in_gb(known[slowest])}")
    return table


def _by_value(values: Mapping[str, Hashable]) -> list[tuple[Hashable, list[str]]]:
    """The usual value first; of very many the rest is counted."""
    hosts: defaultdict[Hashable, list[str]] = defaultdict(list)
    for host, value in values.items():
        hosts[value].append(host)
    if not hosts:
        return []
    common = usual(values)
    ordered = sorted(hosts.items(), key=lambda item: (item[0] != common, -len(item[1])))
    rest = [host for _, named in ordered[_MOST_VALUES:] for host in named]
    listed = ordered[:_MOST_VALUES]
    return [*listed, (f"{len(ordered) - _MOST_VALUES} other values", rest)] if rest else listed


def _joined_report(check: ClusterCheck) -> list[RenderableType]:
    """The findings of the hosts; of one rule only the most common are listed, the others counted."""
    alone = len(check.hosts) == 1
    groups = sorted(check.joined, key=lambda group: -len(group.hosts))
    listed: list[JoinedFinding] = []
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for group in groups:
        seen[group.finding.rule] += 1
        if seen[group.finding.rule] <= _MOST_OF_A_RULE:
            listed.append(group)
        else:
            left_out[group.finding.rule] += group.hosts
    lines = findings_report([group.finding if alone else _short(group) for group in listed])
    return [
        *lines,
        *(
            Text(f"[{rule}] in other words on {_count(len(set(hosts)))} more: {_shortened(hosts)}")
            for rule, hosts in left_out.items()
        ),
    ]


def _short(group: JoinedFinding) -> Finding:
    return replace(group.finding, message=f"{_shortened(group.hosts)}: {group.finding.message}")


def _shortened(hosts: Sequence[str]) -> str:
    names = folded(hosts)
    if len(names) <= _MOST_CHARACTERS:
        return names
    return f"{names[:_MOST_CHARACTERS].rpartition(',')[0]}, ... ({_count(len(hosts))})"


def _count(number: int) -> str:
    return "1 host" if number == 1 else f"{number} hosts"


def _plain_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
