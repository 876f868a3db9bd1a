"""What the CPU suite cannot show: NVML's facts, and a run on a real device."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
import torch

from orchestrator.config.load import load_config
from orchestrator.config.training import ProfileConfig
from orchestrator.launch.preflight.host_check import check_machine
from orchestrator.planning.cluster_spec import Host
from orchestrator.worker.step_profile import StepProfiles
from tests.cli.command_line import orchestrator


def test_devices_are_those_of_torch() -> None:
    facts = check_machine(load_config(["cluster=dgx_h100"]), Host(name="localhost", slots=1)).facts
    assert facts is not None
    assert [device.name for device in facts.devices] == [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_run_on_one_device_ends_well_and_near_its_predicted_memory(stage: int, tmp_path: Path) -> None:
    words = (
        "launch",
        "experiment=smoke",
        "cluster=dgx_h100",
        "cluster.devices_per_host=1",
        f"zero.stage={stage}",
        "zero.reduce_bucket_size=1000000",
        "zero.allgather_bucket_size=1000000",
        "run_dir=run",
        "output=json",
    )
    ended = orchestrator(*words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    memory = ended.json["result"]["memory"]
    assert memory["measured_bytes"] <= memory["predicted_bytes"]


def test_a_profile_holds_the_kernels_and_the_allocations_of_its_step(tmp_path: Path) -> None:
    profiles = StepProfiles(ProfileConfig(steps=[1], memory=True), tmp_path, rank=0)
    with profiles.of_step(1):
        matrix = torch.ones(512, 512, device="cuda")
        (matrix @ matrix).sum().item()
    folder = tmp_path / "profile"
    trace = json.loads(gzip.decompress((folder / "rank_0_step_1.trace.json.gz").read_bytes()))
    assert any(event.get("cat") == "kernel" for event in trace["traceEvents"])
    snapshot = pickle.loads((folder / "rank_0_step_1.memory.pickle").read_bytes())
    sizes = [entry["size"] for entry in snapshot["device_traces"][torch.cuda.current_device()] if entry["action"] == "alloc"]
    assert 4 * 512 * 512 in sizes
