"""Preflight on hosts that are not here: the facts are handed in, the judgement is real."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, Severity
from orchestrator.launch.preflight.facts import (
    OPERATORS,
    PACKAGES,
    TOOLS,
    Accelerators,
    Content,
    Device,
    DeviceProcess,
    Folder,
    HostFacts,
    Operators,
    Project,
)
from orchestrator.launch.preflight.judgement import launcher_findings, machine_findings, port_findings, run_findings
from orchestrator.planning.cluster_spec import ClusterSpec, Host, cluster_spec_from_config
from orchestrator.units import GIB

VERSIONS = {
    "torch": "2.13.0+cpu",
    "deepspeed": "0.19.8",
    "transformers": "5.24.0",
    "safetensors": "0.8.0",
    "tokenizers": "0.23.3",
}
BUILT = Operators(folder="/ops", built=dict.fromkeys(OPERATORS, True), locks={})
UNBUILT = replace(BUILT, built=dict.fromkeys(OPERATORS, False))
READY = HostFacts(
    hostname="host",
    python="3.12.1",
    packages={name: VERSIONS.get(name, "1.0") for name in PACKAGES},
    project=Project(version="0.1.0", path="/opt/orchestrator", digest="0123"),
    accelerators=Accelerators(driver=None, cuda=None, devices=()),
    num_cores=8,
    shared_memory_bytes=8 * GIB,
    open_files=65536,
    operators=BUILT,
    tools={name: f"/usr/bin/{name}" for name in TOOLS},
)
DEVICE = Device(name="H100", total_bytes=80 * GIB, free_bytes=79 * GIB, compute_mode="Default", ecc_errors=0)
OTHERS = DeviceProcess(pid=7, user="ann", program="python", used_bytes=GIB)
DGX = ("cluster=dgx_h100",)
NVME = ("zero=stage3", "offload=optimizer_nvme", "offload.nvme_path=/nvme")
FOLDER = Folder(path="/there", exists=True, writable=True, file_system="ext4", total_bytes=GIB, free_bytes=GIB)


def with_devices(*devices: Device) -> HostFacts:
    return replace(READY, accelerators=Accelerators(driver="570", cuda="12.8", devices=devices))


def judged(facts: HostFacts, *overrides: str, slots: int | None = None, world_size: int = 8) -> list[Finding]:
    config = load_config(list(overrides))
    host = Host(name="node1", slots=slots or config.cluster.devices_per_host)
    return machine_findings(facts, config, host, world_size=world_size)


def errors(findings: list[Finding]) -> set[str]:
    return {finding.field for finding in findings if finding.severity is Severity.error}


def test_a_ready_host_has_nothing_to_say() -> None:
    assert judged(READY) == []
    assert judged(with_devices(*[DEVICE] * 8), *DGX) == []


@pytest.mark.parametrize(
    ("facts", "overrides", "field"),
    [
        (replace(READY, packages={**(READY.packages or {}), "deepspeed": None}), (), "deepspeed"),
        (replace(READY, packages={**(READY.packages or {}), "torch": "2.5.1+cu121"}), (), "torch"),
        (
            replace(READY, packages={**(READY.packages or {}), "tensorboard": None}),
            ("tracking.tensorboard=true",),
            "tracking.tensorboard",
        ),
        (replace(READY, project=None), (), "orchestrator"),
        (replace(READY, operators=UNBUILT, tools={**(READY.tools or {}), "g++": None}), (), "g++"),
        (replace(READY, operators=replace(BUILT, locks={"/ops/cpu_adam/lock": 3600.0})), (), "TORCH_EXTENSIONS_DIR"),
        (READY, DGX, "cluster.accelerator"),
        (replace(READY, accelerators=None, unknown={"accelerators": "nvidia-smi: mismatch"}), DGX, "cluster.accelerator"),
        (with_devices(DEVICE, DEVICE), DGX, "cluster.devices_per_host"),
        (with_devices(*[DEVICE] * 7, replace(DEVICE, compute_mode="Prohibited")), DGX, "device 7"),
        (
            with_devices(*[replace(DEVICE, compute_mode="Exclusive_Process", processes=(OTHERS,))] * 1, *[DEVICE] * 7),
            DGX,
            "device 0",
        ),
        (replace(READY, operators=UNBUILT, tools={**(READY.tools or {}), "libaio": None}), NVME, "libaio"),
    ],
)
def test_what_is_missing_is_named(facts: HostFacts, overrides: tuple[str, ...], field: str) -> None:
    assert errors(judged(facts, *overrides)) == {field}


@pytest.mark.parametrize(
    ("facts", "rule", "told"),
    [
        (with_devices(*[replace(DEVICE, processes=(OTHERS,))] * 8), "device-busy", "python of ann (pid 7)"),
        (with_devices(*[replace(DEVICE, ecc_errors=3)] * 8), "device-errors", "3 uncorrected"),
        (replace(with_devices(*[DEVICE] * 8), shared_memory_bytes=64 << 20), "shared-memory", "64.00 MiB"),
        (replace(with_devices(*[DEVICE] * 8), open_files=1024), "open-files", "1024"),
        (replace(with_devices(*[DEVICE] * 8), unknown={"memory": "PermissionError"}), "unknown-fact", "PermissionError"),
        (replace(with_devices(*[DEVICE] * 8), operators=replace(BUILT, locks={"/lock": 5.0})), "build-lock", "/lock"),
    ],
)
def test_what_may_do_harm_is_a_warning(facts: HostFacts, rule: str, told: str) -> None:
    found = judged(facts, *DGX, world_size=1024)
    assert {finding.rule for finding in found} == {rule}
    assert all(finding.severity is Severity.warning and told in finding.message for finding in found)


def test_only_the_devices_of_the_run_are_judged() -> None:
    facts = with_devices(*[DEVICE] * 4, *[replace(DEVICE, compute_mode="Prohibited")] * 4)
    assert judged(facts, *DGX, slots=4) == []


def test_ops_that_will_be_compiled_are_no_error() -> None:
    (finding,) = judged(replace(READY, operators=UNBUILT))
    assert finding.severity is Severity.info
    assert "deepspeed_shm_comm" in finding.message


@pytest.mark.parametrize(("version", "complaints"), [("0.19.6", ["parallelism.schedule"]), ("0.19.8", [])])
def test_a_deepspeed_that_is_too_old_for_the_schedule_is_named(version: str, complaints: list[str]) -> None:
    facts = replace(READY, packages={**(READY.packages or {}), "deepspeed": version})
    found = judged(facts, "parallelism=dual_pipe_v_4")
    assert [finding.field for finding in found if finding.rule == "deepspeed-version"] == complaints


@pytest.mark.parametrize(
    ("facts", "rules"),
    [
        (replace(READY, folders={"run_dir": FOLDER, "data.cache_dir": FOLDER, "offload.nvme_path": FOLDER}, shared=True), []),
        (
            replace(READY, files={"data.path": Content(path="/x", exists=False, readable=False, bytes=0, digest=None)}),
            ["data-file"],
        ),
        (
            replace(READY, files={"data.path": Content(path="/x", exists=True, readable=False, bytes=0, digest=None)}),
            ["data-file"],
        ),
        (replace(READY, folders={"run_dir": FOLDER}, shared=False), ["run-directory-shared"]),
        (replace(READY, folders={"run_dir": replace(FOLDER, writable=False)}), ["run-directory-shared"]),
        (replace(READY, folders={"run_dir": replace(FOLDER, free_bytes=99)}), ["checkpoint-disk"]),
        (replace(READY, folders={"data.cache_dir": replace(FOLDER, writable=False)}), ["data-cache"]),
        (replace(READY, folders={"offload.nvme_path": replace(FOLDER, writable=False)}), ["nvme-directory"]),
        (replace(READY, folders={"offload.nvme_path": FOLDER}, direct_io="Invalid argument"), ["nvme-direct-io"]),
        (replace(READY, folders={"offload.nvme_path": replace(FOLDER, file_system="tmpfs")}), ["nvme-file-system"]),
        (replace(READY, folders={"offload.nvme_path": replace(FOLDER, file_system="nfs4")}), ["nvme-file-system"]),
        (replace(READY, clock_skew=(-0.5, 1.0)), []),
        (replace(READY, clock_skew=(60.0, 61.0)), ["clock-skew"]),
        (replace(READY, clock_skew=(-61.0, -60.0)), ["clock-skew"]),
    ],
)
def test_what_stands_in_the_way_of_a_run_is_named(facts: HostFacts, rules: list[str]) -> None:
    assert [finding.rule for finding in run_findings(facts, checkpoint_bytes=100)] == rules


def test_a_taken_port_is_named_with_its_number() -> None:
    config = load_config(["launcher.master_port=29500"])
    (finding,) = port_findings(replace(READY, port_is_free=False), config)
    assert "29500" in finding.message
    assert port_findings(replace(READY, port_is_free=True), config) == []


def cluster(config: RunConfig, *names: str) -> ClusterSpec:
    hosts = [Host(name=name, slots=2) for name in names]
    spec, _ = cluster_spec_from_config(config.cluster, hosts=hosts, machine_memory_bytes=GIB)
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("backend", "names", "missing"),
    [
        ("auto", ("localhost",), []),
        ("auto", ("far1", "far2"), ["ssh"]),
        ("ssh", ("far1",), ["ssh"]),
        ("pdsh", ("far1", "far2"), ["ssh", "pdsh"]),
    ],
)
def test_a_program_that_reaches_other_hosts_is_asked_for_where_it_is_used(
    backend: str, names: tuple[str, ...], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    config = load_config([f"launcher.backend={backend}"])
    found = launcher_findings(config, cluster(config, *names))
    assert len(found) == len(missing)
    assert all(tool in finding.message for tool, finding in zip(missing, found, strict=True))
