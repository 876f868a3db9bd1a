"""What the all-reduces of a check say about the hosts, against each other and against the cluster's links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from orchestrator.findings import Finding, warning
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.units import GB

_SLOW = 0.8
"""A host below this share of the median is slow."""
_BELOW_PRESET = 0.5
"""So is a cluster whose median is below this share of what its links are said to do."""
_RULE = "slow-collective"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """Bus bandwidths of all-reduces, bytes a second, as NCCL's tests define them; ``None`` where there is no such group."""

    bytes: int
    """Size of what was reduced."""
    overall: float
    """Over all ranks."""
    within: Mapping[str, float | None]
    """By host: over its own ranks."""
    between: Mapping[str, float | None]
    """By host: over its ranks and a neighbour's; of its two neighbours the faster."""

    def to_dict(self) -> dict[str, Any]:
        """The ``collective`` of ``preflight output=json``."""
        return asdict(self)


def bandwidths_of(result: Mapping[str, Any], hosts: Sequence[str]) -> Bandwidths:
    """Read what rank 0 left; ``hosts`` are the names by node rank."""

    def best(*tests: str) -> dict[str, float | None]:
        groups = [group for test in tests for group in result[test]]
        return {
            host: max((group["bus_bandwidth"] for group in groups if number in group["nodes"]), default=None)
            for number, host in enumerate(hosts)
        }

    return Bandwidths(
        bytes=result["bytes"],
        overall=result["all"][0]["bus_bandwidth"],
        within=best("within"),
        between=best("even_pairs", "odd_pairs"),
    )


def bandwidth_findings(measured: Bandwidths, cluster: ClusterSpec) -> Iterator[tuple[str | None, Finding]]:
    """Hosts that are slower than the others, by name; without a name: what all together fall short of."""
    links = (
        ("device link", "cluster.device_link_gbps", measured.within, cluster.device_link_bandwidth),
        ("network", "cluster.network_gbps", measured.between, cluster.network_bandwidth),
    )
    for name, option, by_host, preset in links:
        known = {host: value for host, value in by_host.items() if value is not None}
        if not known:
            continue
        middle = median(known.values())
        for host, value in known.items():
            if value < _SLOW * middle:
                message = f"all-reduce over the {name} at {in_gb(value)}, where half of the hosts reach {in_gb(middle)}"
                yield host, warning(_RULE, option, message, "look at its links (nvidia-smi topo -m, ibstat), or leave it out")
        if preset is not None and middle < _BELOW_PRESET * preset:
            message = (
                f"all-reduce over the {name} at {in_gb(middle)} in the middle, and the cluster is said to do {in_gb(preset)}"
            )
            fix = "look at NCCL's choice of interfaces (NCCL_DEBUG=INFO in launcher.environment), or correct the option"
            yield None, warning(_RULE, option, message, fix)


def in_gb(bytes_per_second: float) -> str:
    """A bandwidth as links state it."""
    return f"{bytes_per_second / GB:.2f} GB/s"
