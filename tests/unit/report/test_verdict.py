"""The last lines of a plan: what limits, how narrowly it fits, how good the estimate is, and what would fit."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from orchestrator.planning.fixes import find_fixes
from orchestrator.report.accuracy import EstimateAccuracy, estimate_note
from orchestrator.report.text import fixes_report, plan_report
from orchestrator.units import GIB
from tests.unit.planning.configurations import changed, gpu_cluster, plan_of, run_config

BIG = {"training__train_micro_batch_size_per_gpu": 32, "zero__stage": 2}


def said(parts) -> str:
    written = StringIO()
    console = Console(width=400, file=written)
    for part in parts:
        console.print(part, soft_wrap=True)
    return written.getvalue()


def verdict_of(config) -> str:
    (line,) = [line for line in said(plan_report(plan_of(config))).splitlines() if line.startswith("verdict")]
    return line


def test_what_limits_is_in_the_verdict():
    assert "infeasible: device memory limits" in verdict_of(run_config(**BIG, cluster=gpu_cluster(device_memory_gib=20.0)))
    both = run_config(**BIG, cluster=gpu_cluster(device_memory_gib=20.0, host_memory_gib=5.0))
    assert "device memory and host memory limits" in verdict_of(both)


def test_little_room_is_in_the_verdict_and_much_is_not():
    config = run_config()
    needed = plan_of(config).memory.device[0].device_bytes / GIB
    assert "feasible, but with little room: device memory" in verdict_of(
        changed(config, cluster__device_memory_gib=needed * 1.02)
    )
    assert verdict_of(config).startswith("verdict: feasible (the sizes are an estimate")


def test_a_broken_rule_is_no_question_of_room():
    assert "limits" not in verdict_of(run_config(zero__stage=9))


def test_changes_are_shown_with_what_they_then_need():
    config = run_config(**BIG, cluster=gpu_cluster(device_memory_gib=20.0))
    plan = plan_of(config)
    lines = said(fixes_report(plan, find_fixes(config, plan, hosts=None, machine_memory_bytes=64 * GIB))).splitlines()
    assert "activation_checkpointing.policy=full" in lines[1]
    assert all("of 20.00 GiB a device" in line for line in lines[1:])


def test_the_error_of_the_estimate_is_said_once_it_is_known():
    accuracy = EstimateAccuracy(runs=41, median_error=0.043, ninetieth_percentile_error=0.121)
    assert estimate_note(accuracy) == (
        "the sizes are an estimate; half of 41 published runs lie within 4% of it, nine of ten within 12%"
    )
