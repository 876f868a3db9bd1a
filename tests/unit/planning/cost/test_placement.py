"""Who shares a host, and what a collective takes because of it."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.config.enums import Precision
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.cluster_spec import cluster_spec_from_config
from orchestrator.planning.cost.groups import all_reduce_seconds, gather_seconds
from orchestrator.planning.cost.placement import placed
from orchestrator.planning.cost.speeds import speeds_of
from orchestrator.units import GB, GIB, MIB
from tests.unit.planning.configurations import preset


@pytest.fixture(name="speeds")
def a100_speeds():
    config = preset("cluster", "dgx_a100_80", ClusterConfig)
    config.hosts = 32
    cluster, _ = cluster_spec_from_config(config, hosts=None, machine_memory_bytes=GIB)
    return speeds_of(cluster, Precision.bf16)


@pytest.mark.parametrize(
    ("num_ranks", "stride", "ranks_on_host", "num_hosts", "groups_on_host"),
    [
        pytest.param(8, 1, 8, 1, 1, id="tensor parallel in a host"),
        pytest.param(4, 1, 4, 1, 2, id="two tensor-parallel groups in a host"),
        pytest.param(16, 1, 8, 2, 1, id="tensor parallel over two hosts"),
        pytest.param(32, 8, 1, 32, 8, id="data parallel, one rank a host"),
        pytest.param(32, 2, 4, 8, 2, id="data parallel, four ranks a host"),
        pytest.param(2, 64, 1, 2, 8, id="pipeline neighbours"),
        pytest.param(1, 8, 1, 1, 8, id="alone"),
    ],
)
def test_ranks_of_a_group_on_hosts_of_eight(num_ranks, stride, ranks_on_host, num_hosts, groups_on_host):
    group = placed(num_ranks=num_ranks, stride=stride, slots=8)
    assert (group.ranks_on_host, group.num_hosts, group.groups_on_host) == (ranks_on_host, num_hosts, groups_on_host)


def test_placement_takes_arrays():
    sizes = np.array([1, 2, 8, 16])
    together = placed(num_ranks=sizes, stride=1, slots=8)
    each = [placed(num_ranks=int(size), stride=1, slots=8) for size in sizes]
    assert list(together.num_hosts) == [group.num_hosts for group in each]


def test_a_group_of_one_costs_nothing(speeds):
    alone = placed(num_ranks=1, stride=1, slots=8)
    assert all_reduce_seconds(GB, alone, speeds) == 0
    assert gather_seconds(GB, alone, speeds) == 0


def test_all_reduce_in_a_host_takes_what_nccl_measured(speeds):
    """vTrain's table: 1 GiB on 8 A100 in 8.196 ms."""
    assert all_reduce_seconds(GIB, placed(num_ranks=8, stride=1, slots=8), speeds) == pytest.approx(8.196e-3, rel=0.1)


def test_leaving_the_host_costs_more_and_small_messages_most(speeds):
    inside, outside = placed(num_ranks=8, stride=1, slots=8), placed(num_ranks=32, stride=1, slots=8)
    large = all_reduce_seconds(GIB, outside, speeds) / all_reduce_seconds(GIB, inside, speeds)
    small = all_reduce_seconds(MIB // 4, outside, speeds) / all_reduce_seconds(MIB // 4, inside, speeds)
    assert 1 < large < small


def test_groups_that_share_a_network_slow_each_other(speeds):
    one, eight = placed(num_ranks=16, stride=1, slots=8), placed(num_ranks=2, stride=8, slots=8)
    assert eight.groups_on_host == 8 * one.groups_on_host
    assert all_reduce_seconds(GIB, eight, speeds) > 3 * all_reduce_seconds(GIB, one, speeds)


def test_a_gather_passes_every_host_in_turn(speeds):
    """NCCL has no tree for it, so at a thousand ranks its latency shows where an all-reduce's does not."""
    many = placed(num_ranks=1024, stride=1, slots=8)
    assert gather_seconds(MIB, many, speeds) > 3 * all_reduce_seconds(MIB, many, speeds)
