"""Equal findings of many hosts said once, and many host names written short."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.findings import Finding

_ANY_HOST = "HOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedFinding:
    """A finding and the hosts that have it, in the order of the run. Where it named its host it says ``HOST`` for several."""

    finding: Finding
    hosts: tuple[str, ...]

    def with_hosts(self) -> Finding:
        """The finding with its hosts before the message."""
        return replace(self.finding, message=f"{folded(self.hosts)}: {self.finding.message}")


def joined(findings: Mapping[str, Sequence[Finding]]) -> list[JoinedFinding]:
    """Findings by host, those that say the same in one, in the order in which they first appear."""
    groups: dict[Finding, list[tuple[str, Finding]]] = {}
    for host, own in findings.items():
        for finding in own:
            groups.setdefault(_of_any_host(host, finding), []).append((host, finding))
    return [
        JoinedFinding(finding=members[0][1] if len(members) == 1 else common, hosts=tuple(host for host, _ in members))
        for common, members in groups.items()
    ]


def folded(names: Sequence[str]) -> str:
    """Host names as Slurm writes them: ``node[01-03,07], login``."""
    return ", ".join(_folded(names))


def _of_any_host(host: str, finding: Finding) -> Finding:
    own = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)")
    return replace(finding, message=own.sub(_ANY_HOST, finding.message), fix=own.sub(_ANY_HOST, finding.fix))


def _folded(names: Sequence[str]) -> Iterator[str]:
    numbered: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        # of an address the last number alone would be folded: that is no name
        stem = (name, "") if match is None or re.fullmatch(r"[\d.]+", name) else (match[1], match[3])
        numbered.setdefault(stem, []).append("" if stem[0] == name else (match[2] if match is not None else ""))
    for (before, after), numbers in numbered.items():
        ranges = list(_ranges(numbers))
        if len(ranges) == 1 and "-" not in ranges[0]:
            yield f"{before}{ranges[0]}{after}"
        else:
            yield f"{before}[{','.join(ranges)}]{after}"


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    """Runs of consecutive numbers of one width: ``01-03``."""
    first = last = numbers[0]
    for number in [*numbers[1:], ""]:
        if number and int(number) == int(last) + 1 and (len(number) == len(last) or "0" not in (number[0], last[0])):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
