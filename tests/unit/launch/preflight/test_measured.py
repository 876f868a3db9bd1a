"""What was measured makes a new plan: with the lower of what is configured and what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.launch.preflight.facts import Accelerators, Device, Folder, HostFacts, Memory
from orchestrator.launch.preflight.measured import busy_memory, capacity_remarks, measured_hosts
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.units import GIB

WORDS = ["model=llama_3_1b", "cluster=dgx_h100", "cluster.nvme_gib=28000", "training=default", "zero=stage2"]
HOSTS = (Host(name="n1", slots=8), Host(name="n2", slots=8))


def plan_of(config: RunConfig, hosts: tuple[Host, ...] = HOSTS) -> Plan:
    return make_plan(config, hosts=hosts, machine_memory_bytes=64 * GIB)


def facts(*, device_gib: float = 79.5, ram_gib: float = 4096, nvme_gib: float = 50_000) -> HostFacts:
    device = Device(name="H100", total_bytes=80 * GIB, free_bytes=80 * GIB)
    tight = replace(device, free_bytes=round(device_gib * GIB))
    ram = round(ram_gib * GIB)
    size = round(nvme_gib * GIB)
    folder = Folder(path="/nvme", exists=True, writable=True, file_system="xfs", total_bytes=size, free_bytes=size)
    return HostFacts(
        accelerators=Accelerators(driver="570", cuda="12.8", devices=(*[device] * 7, tight)),
        memory=Memory(total_bytes=ram, limit_bytes=ram, available_bytes=ram),
        folders={"offload.nvme_path": folder},
    )


def measured(config: RunConfig, **on_second: float) -> tuple[Plan, list[tuple[str, str]]]:
    before = plan_of(config)
    assert before.cluster is not None
    hosts = measured_hosts(config, before.cluster, {"n1": facts(), "n2": facts(**on_second)})
    remarks = [(host, finding.field) for host, finding in capacity_remarks(config, before.cluster, hosts)]
    return plan_of(config, hosts), remarks


def test_hosts_that_have_what_is_configured_change_nothing() -> None:
    config = load_config(WORDS)
    after, remarks = measured(config)
    assert after == plan_of(config)
    assert remarks == []


@pytest.mark.parametrize(
    ("option", "size", "rule", "words"),
    [
        ("device_gib", 2.0, "device-memory", []),
        ("ram_gib", 8.0, "host-memory", []),
        ("nvme_gib", 1.0, "nvme-capacity", ["zero=stage3", "offload=optimizer_nvme", "offload.nvme_path=/nvme"]),
    ],
)
def test_a_host_that_has_too_little_is_named(option: str, size: float, rule: str, words: list[str]) -> None:
    config = load_config([*WORDS, *words])
    assert plan_of(config).fits
    after, remarks = measured(config, **{option: size})
    (finding,) = [finding for finding in after.findings if finding.rule == rule]
    assert after.verdict == "infeasible"
    assert "n2" in finding.message and f"{size:.2f} GiB" in finding.message
    assert [host for host, _ in remarks] == ["n2"]


def test_less_than_configured_that_is_enough_is_said_and_planned_with() -> None:
    after, remarks = measured(load_config(WORDS), device_gib=60.0)
    assert after.fits and after.memory is not None
    assert {entry.capacity_bytes for entry in after.memory.device} == {60 * GIB}
    assert remarks == [("n2", "cluster.device_memory_gib")]


def test_only_the_stage_on_the_tight_host_is_held_to_it() -> None:
    config = load_config(["model=llama_3_1b", "cluster=dgx_h100", "training=default", "parallelism.pipeline_parallel_size=2"])
    after, _ = measured(config, device_gib=60.0)
    assert after.memory is not None
    first, second = after.memory.device
    assert (first.measured_on, second.measured_on, second.capacity_bytes) == (None, "n2", 60 * GIB)
    assert first.capacity_bytes > second.capacity_bytes


def test_more_than_configured_is_never_used() -> None:
    config = load_config([*WORDS, "cluster.host_memory_gib=100", "cluster.device_memory_gib=40"])
    after, remarks = measured(config)
    assert after.memory is not None
    assert {entry.capacity_bytes for entry in after.memory.host} == {100 * GIB}
    assert {entry.capacity_bytes for entry in after.memory.device} == {40 * GIB}
    assert remarks == []


def test_ram_that_is_not_configured_is_each_hosts_own() -> None:
    after, remarks = measured(load_config([*WORDS, "cluster.host_memory_gib=null"]), ram_gib=900.0)
    assert after.memory is not None
    assert {entry.host: entry.capacity_bytes for entry in after.memory.host} == {"n1": 4096 * GIB, "n2": 900 * GIB}
    assert remarks == []


def test_ranks_on_a_cpu_share_the_ram_of_their_host() -> None:
    config = load_config(["cluster.devices_per_host=2"])
    hosts = (Host(name="n1", slots=2), Host(name="n2", slots=2))
    cluster = plan_of(config, hosts).cluster
    assert cluster is not None
    small = facts(ram_gib=1.0)
    after = plan_of(config, measured_hosts(config, cluster, {"n1": facts(), "n2": small}))
    (finding,) = [finding for finding in after.findings if finding.rule == "host-memory"]
    assert after.verdict == "infeasible" and finding.message.startswith("n2 ")


def test_ram_that_others_hold_is_pointed_out() -> None:
    held = replace(facts(), memory=Memory(total_bytes=100, limit_bytes=100, available_bytes=30))
    ((host, finding),) = busy_memory({"n1": facts(), "n2": held}, {"n1": 50, "n2": 50})
    assert (host, finding.rule) == ("n2", "busy-memory")
