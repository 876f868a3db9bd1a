"""A measured host as a description of a cluster: rates beside labels become shares of them, without a label they are it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.cost.collectives import Collective, bytes_sent_per_rank
from orchestrator.units import GB

_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Latency in seconds and bandwidth in bytes a second of an all-reduce over ``ranks`` ranks of a host."""

    ranks: int
    latency: float
    bandwidth: float


def all_reduce_of(entries: Sequence[Mapping[str, float]]) -> AllReduce | None:
    """The all-reduce over most ranks: the shortest time is its latency, the largest message beside that its bandwidth."""
    if not entries:
        return None
    ranks = int(max(entry["ranks"] for entry in entries))
    own = sorted((entry for entry in entries if entry["ranks"] == ranks), key=lambda entry: entry["bytes"])
    latency, largest = float(min(entry["seconds"] for entry in own)), own[-1]
    sent = bytes_sent_per_rank(Collective.all_reduce, size_bytes=largest["bytes"], num_ranks=ranks)
    return AllReduce(
        ranks=ranks, latency=latency, bandwidth=float(sent / max(largest["seconds"] - latency, 0.1 * largest["seconds"]))
    )


def measured_cluster(config: ClusterConfig, figures: Mapping[str, Any], *, cores_per_host: int | None) -> ClusterConfig:
    """``config`` with what was measured of one of its hosts.

    ``figures`` is what ``orchestrator.worker.measure`` leaves, with ``nvme_read`` and ``nvme_write`` of a measured disk.
    With ``cores_per_host`` the figures of a process are shared out to its cores.
    """
    is_cpu = config.accelerator is Accelerator.cpu
    threads = 1 if cores_per_host is None else max(1, cores_per_host // config.devices_per_host)
    labels: dict[str, Any] = {"cores_per_host": cores_per_host} if is_cpu else {}
    speed: dict[str, float] = dict(_fixed_costs(figures))
    for label, share, rate in _rates(figures, threads):
        known = None if is_cpu else getattr(config, label)
        if known is None:
            labels[label] = _rounded(rate)
        if share is not None:
            speed[share] = 1.0 if known is None else _rounded(rate / known)
    return replace(config, **labels, speed=replace(config.speed, **speed))


def _rates(figures: Mapping[str, Any], threads: int) -> Iterator[tuple[str, str | None, float]]:
    """Option with the label, option with the share of it, and the measured rate in the label's unit."""
    shared = None if len(figures["products"]) == 0 else max(figures["products"], key=lambda name: _best(figures, name))
    for name in figures["products"]:
        yield f"{name}_tflops", "matmul_efficiency" if name == shared else None, _best(figures, name) / threads / 1e12
    yield "memory_bandwidth_gbps", "memory_efficiency", figures["memory_bandwidth"] / threads / GB
    reduced = all_reduce_of(figures["all_reduce"])
    if reduced is not None:
        yield "device_link_gbps", "link_efficiency", reduced.bandwidth / GB
        yield "device_link_gbps", "all_reduce_efficiency", reduced.bandwidth / GB
    if figures["host_link_bandwidth"] is not None:
        yield "host_link_gbps", "host_link_efficiency", figures["host_link_bandwidth"] / GB


def _fixed_costs(figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    yield "launch_us", _rounded(1e6 * figures["launch_seconds"])
    reduced = all_reduce_of(figures["all_reduce"])
    if reduced is not None:
        yield "link_latency_us", _rounded(1e6 * reduced.latency)
    if figures["host_adam"] is not None:
        yield "host_adam_gparams", _rounded(figures["host_adam"] / 1e9)
    for name in ("nvme_read", "nvme_write"):
        if figures.get(name) is not None:
            yield f"{name}_gbps", _rounded(figures[name] / GB)


def _best(figures: Mapping[str, Any], precision: str) -> float:
    return float(max(figures["products"][precision].values()))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
