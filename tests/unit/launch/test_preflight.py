"""Preflight on machines that are not here: the facts are handed in, the judgement is real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.load import load_config
from orchestrator.findings import Severity
from orchestrator.launch import preflight
from orchestrator.launch.machine import OPS, PACKAGES, TOOLS, Device, Machine
from orchestrator.launch.preflight import file_system, machine_findings, run_findings
from orchestrator.units import GIB

VERSIONS = {
    "torch": "2.13.0+cpu",
    "deepspeed": "0.19.8",
    "transformers": "5.24.0",
    "safetensors": "0.8.0",
    "tokenizers": "0.23.3",
}
READY = Machine(
    hostname="host",
    python="3.12.1",
    packages={name: VERSIONS.get(name, "1.0") for name in PACKAGES},
    devices=(),
    num_cores=8,
    memory_bytes=64 * GIB,
    available_memory_bytes=60 * GIB,
    shared_memory_bytes=8 * GIB,
    tools={name: f"/usr/bin/{name}" for name in TOOLS},
    extensions_dir=Path("/ops"),
    built_ops=dict.fromkeys(OPS, True),
    build_locks={},
)
DEVICE = Device(name="H100", total_bytes=80 * GIB, free_bytes=79 * GIB)


def errors(machine: Machine, *overrides: str) -> set[str]:
    found = machine_findings(machine, load_config(list(overrides)))
    return {finding.field for finding in found if finding.severity is Severity.error}


def test_a_ready_machine_has_nothing_to_say() -> None:
    assert machine_findings(READY, load_config([])) == []


@pytest.mark.parametrize(
    ("machine", "overrides", "field"),
    [
        (replace(READY, packages={**READY.packages, "deepspeed": None}), (), "deepspeed"),
        (replace(READY, packages={**READY.packages, "torch": "2.5.1+cu121"}), (), "torch"),
        (replace(READY, built_ops=dict.fromkeys(OPS, False), tools={**READY.tools, "g++": None}), (), "g++"),
        (replace(READY, build_locks={Path("/ops/cpu_adam/lock"): 3600.0}), (), "TORCH_EXTENSIONS_DIR"),
        (READY, ("cluster=dgx_h100",), "cluster.accelerator"),
        (replace(READY, devices=(DEVICE, DEVICE)), ("cluster=dgx_h100",), "cluster.devices_per_host"),
        (
            replace(READY, built_ops=dict.fromkeys(OPS, False), tools={**READY.tools, "libaio": None}),
            ("zero=stage3", "offload=optimizer_nvme", "offload.nvme_path=/nvme"),
            "libaio",
        ),
        (replace(READY, tools={**READY.tools, "pdsh": None}), ("cluster.hosts=2",), "launcher.backend"),
    ],
)
def test_what_is_missing_is_named(machine: Machine, overrides: tuple[str, ...], field: str) -> None:
    assert errors(machine, *overrides) == {field}


def test_ops_that_will_be_compiled_are_no_error() -> None:
    (finding,) = machine_findings(replace(READY, built_ops=dict.fromkeys(OPS, False)), load_config([]))
    assert finding.severity is Severity.info
    assert "deepspeed_shm_comm" in finding.message


@pytest.mark.parametrize(
    ("overrides", "num_parameters", "field"),
    [
        (("data.tokenizer_path=/nowhere/tokenizer.json",), 1, "data.tokenizer_path"),
        (("data=text", "data.path=/nowhere"), 1, "data.path"),
        ((), 10**15, "run_dir"),
        (("offload=optimizer_nvme", "offload.nvme_path=/etc/passwd/nvme"), 1, "offload.nvme_path"),
    ],
)
def test_what_stands_in_the_way_of_a_run_is_named(
    overrides: tuple[str, ...], num_parameters: int, field: str, tmp_path: Path
) -> None:
    found = run_findings(load_config(list(overrides)), run_dir=tmp_path / "run", num_parameters=num_parameters)
    assert [finding.field for finding in found] == [field]


@pytest.mark.parametrize(("version", "complaints"), [("0.19.6", ["parallelism.schedule"]), ("0.19.8", [])])
def test_a_deepspeed_that_is_too_old_for_the_schedule_is_named(version: str, complaints: list[str]) -> None:
    machine = replace(READY, packages={**READY.packages, "deepspeed": version})
    found = machine_findings(machine, load_config(["parallelism=dual_pipe_v_4"]))
    assert [finding.field for finding in found if finding.rule == "deepspeed-version"] == complaints


@pytest.mark.parametrize(("kind", "told"), [("tmpfs", ["RAM"]), ("nfs4", ["network"]), ("ext4", [])])
def test_a_swap_folder_that_is_on_no_local_disk_is_named(
    kind: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "file_system", lambda _folder: kind)
    config = load_config(["zero=stage3", "offload=optimizer_nvme", f"offload.nvme_path={tmp_path}"])
    found = run_findings(config, run_dir=tmp_path / "run", num_parameters=1)
    messages = [finding.message for finding in found if finding.rule == "nvme-file-system"]
    assert len(messages) == len(told)
    assert all(word in message for word, message in zip(told, messages, strict=True))


def test_the_file_system_of_a_folder_that_is_not_there_yet_is_its_parents() -> None:
    assert file_system(Path("/proc/nothing/here")) == "proc"
