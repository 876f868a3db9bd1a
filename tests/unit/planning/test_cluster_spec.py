"""The cluster of a configuration, and the presets."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.enums import Accelerator, Precision
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.cluster_spec import Host, cluster_spec_from_config
from orchestrator.units import GIB
from tests.unit.planning.configurations import ROOT, cpu_cluster, gpu_cluster, preset

PRESETS = sorted(path.stem for path in (ROOT / "conf" / "cluster").glob("*.yaml"))
MACHINE = 64 * GIB


def spec_of(config, hosts=None):
    spec, findings = cluster_spec_from_config(config, hosts=hosts, machine_memory_bytes=MACHINE)
    assert findings == []
    return spec


def test_one_host_is_this_one():
    spec = spec_of(gpu_cluster())
    assert spec.hosts == (Host(name="localhost", slots=8),)
    assert spec.num_devices == spec.devices_per_host == 8
    assert spec.device_memory_bytes == round(79.14 * GIB)


def test_a_count_of_hosts_names_them():
    spec = spec_of(gpu_cluster(hosts=3))
    assert [host.name for host in spec.hosts] == ["host-1", "host-2", "host-3"]
    assert spec.num_devices == 24


def test_a_hostfile_wins():
    spec = spec_of(gpu_cluster(hosts=3), hosts=[Host(name="a", slots=4), Host(name="b", slots=2)])
    assert [host.name for host in spec.hosts] == ["a", "b"]
    assert (spec.num_devices, spec.devices_per_host) == (6, 4)


def test_a_cpu_shares_the_machine_over_its_processes():
    spec = spec_of(cpu_cluster())
    assert spec.host_memory_bytes == MACHINE
    assert spec.device_memory_bytes == MACHINE // 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"hosts": 0}, "cluster.hosts"),
        ({"devices_per_host": -1}, "cluster.devices_per_host"),
        ({"device_memory_gib": 0.0}, "cluster.device_memory_gib"),
        ({"device_memory_gib": float("nan")}, "cluster.device_memory_gib"),
        ({"device_memory_gib": None}, "cluster.device_memory_gib"),
        ({"host_memory_gib": -3.0}, "cluster.host_memory_gib"),
        ({"nvme_gib": float("inf")}, "cluster.nvme_gib"),
        ({"device_context_gib": -1.0}, "cluster.device_context_gib"),
    ],
)
def test_impossible_sizes_are_refused(fields, field):
    spec, findings = cluster_spec_from_config(gpu_cluster(**fields), hosts=None, machine_memory_bytes=MACHINE)
    assert spec is None
    assert [finding.field for finding in findings] == [field]


def test_all_impossible_sizes_are_reported_together():
    config = gpu_cluster(hosts=0, devices_per_host=0, nvme_gib=-1.0)
    _, findings = cluster_spec_from_config(config, hosts=None, machine_memory_bytes=MACHINE)
    assert {finding.field for finding in findings} == {"cluster.hosts", "cluster.devices_per_host", "cluster.nvme_gib"}


def test_a_hostfile_without_devices_is_refused():
    hosts = [Host(name="a", slots=0)]
    _, findings = cluster_spec_from_config(gpu_cluster(), hosts=hosts, machine_memory_bytes=MACHINE)
    assert [finding.field for finding in findings] == ["cluster.hostfile"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete_and_plausible(name):
    config = preset("cluster", name, ClusterConfig)
    spec = spec_of(config)
    assert spec.name == name
    assert Precision.fp32 in spec.precisions
    if spec.accelerator is Accelerator.cpu:
        return
    bandwidths = (spec.memory_bandwidth, spec.device_link_bandwidth, spec.host_link_bandwidth, spec.network_bandwidth)
    assert all(bandwidth is not None for bandwidth in bandwidths)
    assert spec.memory_bandwidth > spec.device_link_bandwidth >= spec.host_link_bandwidth
    half = Precision.bf16 if Precision.bf16 in spec.precisions else Precision.fp16
    assert spec.peak_flops[half] > spec.peak_flops[Precision.fp32] > 1e12
    assert set(spec.peak_flops) == spec.precisions


@pytest.mark.parametrize(
    ("name", "devices", "gib", "dtype", "tflops"),
    [
        ("v100_32", 16, 31.73, Precision.fp16, 125),
        ("dgx_a100_40", 8, 39.38, Precision.bf16, 312),
        ("dgx_a100_80", 8, 79.14, Precision.bf16, 312),
        ("dgx_h100", 8, 79.14, Precision.bf16, 989.4),
        ("dgx_h200", 8, 139.72, Precision.bf16, 989),
        ("dgx_b200", 8, 178.35, Precision.bf16, 2250),
        ("l40s", 8, 44.39, Precision.bf16, 362),
        ("rtx4090", 4, 23.64, Precision.bf16, 165.2),
        ("mi300x", 8, 191.69, Precision.bf16, 1307),
    ],
)
def test_a_preset_has_what_torch_reports_and_the_dense_peak(name, devices, gib, dtype, tflops):
    spec = spec_of(preset("cluster", name, ClusterConfig))
    assert spec.num_devices == devices
    assert spec.device_memory_bytes == round(gib * GIB)
    assert spec.peak_flops[dtype] == tflops * 1e12


def test_the_presets_are_those_promised():
    promised = {"local_cpu", "v100_32", "dgx_a100_40", "dgx_a100_80", "dgx_h100", "dgx_h200", "dgx_b200", "l40s", "rtx4090"}
    assert set(PRESETS) == promised | {"mi300x"}
    assert Path(ROOT / "conf" / "cluster").is_dir()
