"""What is said of a run that ran out of memory, from failure records as workers write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands import explain
from orchestrator.commands.launch import run_contents
from orchestrator.commands.out_of_memory import OutOfMemory, report
from orchestrator.config.load import load_config
from orchestrator.launch.command import HOSTFILE, hostfile_text
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.run_dir import Attempt, CommandWords, start_run, write_json, write_text
from orchestrator.units import GIB

MACHINE = 64 * GIB
LLAMA = (
    "model=llama_3_8b",
    "cluster=dgx_a100_80",
    "zero=stage2",
    "training=default",
    "data.sequence_length=4096",
    "data.path=/d",
)
GPT2 = (
    "model=gpt2",
    "cluster=local_cpu",
    "data=synthetic",
    "data.sequence_length=512",
    "training.train_batch_size=null",
    "training.train_micro_batch_size_per_gpu=8",
    "training.gradient_accumulation_steps=1",
)


def planned(tmp_path: Path, *words: str) -> tuple[Attempt, Plan]:
    """The attempt of a run that was found feasible."""
    config = load_config([*words, f"run_dir={tmp_path / 'run'}"])
    plan = make_plan(config, hosts=None, machine_memory_bytes=MACHINE)
    assert plan.fits, plan.findings
    assert plan.cluster is not None
    attempt = start_run(tmp_path / "run", run_contents(config, plan, CommandWords()))
    write_text(attempt.path / HOSTFILE, hostfile_text(plan.cluster))
    return attempt, plan


def failed(attempt: Attempt, rank: int, memory: dict[str, Any] | None) -> OutOfMemory | None:
    """``rank`` failed with this record."""
    failure = {"rank": rank, "host": "here", "error": "E", "traceback": "T", "time": 0.0, "memory": memory}
    write_json(attempt.path / f"failure_rank_{rank}.json", failure)
    return report(attempt, rank)


def device_record(*, total: int, free: int, requested: int, **changes: Any) -> dict[str, Any]:
    """The memory of a rank that asked its device for too much."""
    used = total - free - GIB
    return {
        "place": "device",
        "requested_bytes": requested,
        "components": {"parameters": 15 * GIB, "gradients": 2 * GIB, "optimizer_states": 12 * GIB, "other": GIB},
        "device_allocated_bytes": used,
        "device_allocated_peak_bytes": used,
        "device_reserved_bytes": used,
        "device_reserved_peak_bytes": used,
        "device_free_bytes": free,
        "device_total_bytes": total,
        "resident_bytes": 3 * GIB,
        "resident_peak_bytes": 3 * GIB,
        "host_total_bytes": 2000 * GIB,
        "host_available_bytes": 1900 * GIB,
    } | changes


def host_record(*, total: int, available: int, requested: int | None) -> dict[str, Any]:
    """The memory of a rank on a CPU that asked its host for too much."""
    return device_record(total=0, free=0, requested=0) | {
        **dict.fromkeys(name for name in device_record(total=0, free=0, requested=0) if name.startswith("device")),
        "place": "host",
        "requested_bytes": requested,
        "host_total_bytes": total,
        "host_available_bytes": available,
    }


def said(found: OutOfMemory) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        for part in found.text():
            console.print(part)
    return capture.get()


def replanned(attempt: Attempt, found: OutOfMemory, position: int, **capacity: float) -> Plan:
    config = load_config([*LLAMA, f"run_dir={attempt.run_dir}", *found.fixes[position].overrides])
    for name, value in capacity.items():
        setattr(config.cluster, name, value)
    return make_plan(config, hosts=None, machine_memory_bytes=MACHINE)


def test_a_device_that_is_smaller_than_planned_gets_changes_that_fit_it(tmp_path: Path) -> None:
    attempt, plan = planned(tmp_path, *LLAMA)
    assert plan.memory is not None
    found = failed(attempt, 3, device_record(total=40 * GIB, free=GIB, requested=2 * GIB))
    assert found is not None
    assert (found.rank, found.host) == (3, "localhost")
    assert found.shortage.capacity_bytes == 40 * GIB
    assert found.shortage.predicted_bytes == plan.memory.device[0].device_bytes
    assert found.fixes
    for position in range(len(found.fixes)):
        assert replanned(attempt, found, position, device_memory_gib=40.0).fits
    text = said(found)
    assert "the device of rank 3 on localhost: 2.00 GiB were asked for, 1.00 GiB of 40.00 GiB were free" in text
    assert "the plan counted on 79.14 GiB, and there are 40.00 GiB" in text
    assert " ".join(found.fixes[0].overrides) in text


def test_predicted_stands_beside_measured_for_every_component(tmp_path: Path) -> None:
    attempt, plan = planned(tmp_path, *LLAMA)
    assert plan.memory is not None
    found = failed(attempt, 0, device_record(total=40 * GIB, free=GIB, requested=2 * GIB))
    assert found is not None
    entry = plan.memory.device[0]
    rows = {row.name: row for row in found.shortage.components}
    assert (rows["parameters"].predicted_bytes, rows["parameters"].measured_bytes) == (entry.components["parameters"], 15 * GIB)
    rest = rows["activations and all else"]
    assert rest.measured_bytes == 38 * GIB - (15 + 2 + 12) * GIB
    assert sum(row.predicted_bytes or 0 for row in found.shortage.components) == entry.allocated_bytes
    assert {row.name for row in found.shortage.levels} == {"allocated", "reserved", "device"}


@pytest.mark.parametrize("beyond", [2, 12])
def test_what_was_not_foreseen_is_kept_free_by_the_change(tmp_path: Path, beyond: int) -> None:
    attempt, plan = planned(tmp_path, *LLAMA)
    assert plan.memory is not None
    capacity = plan.memory.device[0].capacity_bytes
    predicted = plan.memory.device[0].device_bytes
    free = GIB // 2
    found = failed(attempt, 0, device_record(total=capacity, free=free, requested=beyond * GIB))
    assert found is not None
    unforeseen = capacity - free + beyond * GIB - predicted
    assert found.shortage.usable_bytes == capacity - unforeseen
    assert all(fix.device_bytes + unforeseen < capacity for fix in found.fixes)
    assert found.fixes
    assert "more than predicted were in use or asked for" in said(found)


def test_where_the_plan_had_room_no_change_is_made_up(tmp_path: Path) -> None:
    attempt, _ = planned(tmp_path, *LLAMA)
    found = failed(attempt, 0, device_record(total=79 * GIB, free=70 * GIB, requested=GIB))
    assert found is not None
    assert found.fixes == ()
    assert "by the plan there was room: another process on the device, or fragments" in said(found)


def test_a_host_whose_ram_is_used_up_gets_changes_that_need_less_of_it(tmp_path: Path) -> None:
    attempt, plan = planned(tmp_path, *GPT2)
    assert plan.memory is not None
    peak = plan.memory.host[0].peak_bytes
    total = peak - peak // 20
    found = failed(attempt, 1, host_record(total=total, available=GIB // 8, requested=GIB // 4))
    assert found is not None
    assert found.fixes
    assert all(fix.host_bytes < total for fix in found.fixes)
    text = said(found)
    assert "the RAM of localhost (rank 1)" in text
    assert "optimizer_states" in text


def test_a_rank_that_was_killed_is_explained_by_the_plan_alone(tmp_path: Path) -> None:
    attempt, plan = planned(tmp_path, *GPT2, "cluster.host_memory_gib=20")
    assert plan.memory is not None
    assert report(attempt, 0) is None
    found = report(attempt, 0, killed=True)
    assert found is not None
    assert found.fixes
    assert all(fix.host_bytes < plan.memory.host[0].peak_bytes for fix in found.fixes)
    assert "killed before it could say what it had" in said(found)


def test_another_failure_is_none_of_its_business(tmp_path: Path) -> None:
    attempt, _ = planned(tmp_path, *GPT2)
    assert failed(attempt, 0, None) is None


def test_explain_says_it_of_a_run_directory(tmp_path: Path) -> None:
    attempt, _ = planned(tmp_path, *GPT2)
    failed(attempt, 1, host_record(total=12 * GIB, available=GIB // 8, requested=GIB // 4))
    write_text(attempt.log_file, "MemoryError: Unable to allocate 256. MiB\n")
    explained = explain.run([str(attempt.run_dir)])
    assert explained.payload["cause"] == "host-out-of-memory"
    assert explained.payload["out_of_memory"]["rank"] == 1
    assert explained.payload["out_of_memory"]["fixes"]


def test_explain_tells_a_kill_from_the_log_alone(tmp_path: Path) -> None:
    attempt, _ = planned(tmp_path, *GPT2, "cluster.host_memory_gib=20")
    write_text(
        attempt.log_file, "[2026-11-30 12:00:00,000] [ERROR] [launch.py:325:sigkill_handler] exits with return code = -9\n"
    )
    explained = explain.run([str(attempt.run_dir)])
    assert explained.payload["out_of_memory"]["place"] == "host"
    assert explained.payload["out_of_memory"]["components"][0]["measured_bytes"] is None
