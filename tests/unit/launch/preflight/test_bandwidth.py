"""What all-reduces say of the hosts: who is slow beside the others, and what all fall short of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config.load import load_config
from orchestrator.launch.preflight.bandwidth import Bandwidths, bandwidth_findings, bandwidths_of
from orchestrator.planning.cluster_spec import ClusterSpec, cluster_spec_from_config
from orchestrator.units import GB

HOSTS = ["n0", "n1", "n2", "n3"]
EVEN = Bandwidths(
    bytes=1 << 28, overall=40.0 * GB, within=dict.fromkeys(HOSTS, 400.0 * GB), between=dict.fromkeys(HOSTS, 45.0 * GB)
)


@pytest.fixture(scope="module")
def cluster() -> ClusterSpec:
    config = load_config(["cluster=dgx_h100", "cluster.hosts=4", "cluster.device_link_gbps=450", "cluster.network_gbps=50"])
    spec, _ = cluster_spec_from_config(config.cluster, hosts=None, machine_memory_bytes=1)
    assert spec is not None
    return spec


def test_hosts_that_are_alike_and_as_fast_as_their_links_are_not_spoken_of(cluster: ClusterSpec) -> None:
    assert list(bandwidth_findings(EVEN, cluster)) == []


def test_a_slow_host_is_told_from_the_others(cluster: ClusterSpec) -> None:
    slow = replace(EVEN, within={**EVEN.within, "n2": 90.0 * GB})
    ((host, finding),) = bandwidth_findings(slow, cluster)
    assert (host, finding.field) == ("n2", "cluster.device_link_gbps")
    assert "90.00 GB/s" in finding.message and "400.00 GB/s" in finding.message


def test_a_cluster_that_is_slower_than_its_links_is_said_once(cluster: ClusterSpec) -> None:
    slow = replace(EVEN, between=dict.fromkeys(HOSTS, 3.0 * GB))
    ((host, finding),) = bandwidth_findings(slow, cluster)
    assert (host, finding.field) == (None, "cluster.network_gbps")
    assert "3.00 GB/s" in finding.message and "50.00 GB/s" in finding.message


def test_what_is_not_known_of_the_links_or_was_not_measured_is_no_complaint(cluster: ClusterSpec) -> None:
    alone = replace(EVEN, within=dict.fromkeys(HOSTS), between=dict.fromkeys(HOSTS, 0.1 * GB))
    assert list(bandwidth_findings(alone, replace(cluster, network_bandwidth=None))) == []


def test_the_neighbour_of_a_slow_host_is_not_slow() -> None:
    def group(nodes: list[int], bandwidth: float) -> dict[str, object]:
        return {"nodes": nodes, "ranks": 16, "seconds": 1.0, "bus_bandwidth": bandwidth}

    result = {
        "bytes": 4,
        "within": [group([node], 9.0) for node in range(4)],
        "even_pairs": [group([0, 1], 5.0), group([2, 3], 1.0)],
        "odd_pairs": [group([1, 2], 5.0)],
        "all": [group([0, 1, 2, 3], 1.0)],
    }
    measured = bandwidths_of(result, HOSTS)
    assert measured.between == {"n0": 5.0, "n1": 5.0, "n2": 5.0, "n3": 1.0}
    assert measured.overall == 1.0
