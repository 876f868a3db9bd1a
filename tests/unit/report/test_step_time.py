"""What people read of the time of a step."""

from __future__ import annotations

import pytest
from rich.console import Console

from orchestrator.config.enums import Precision
from orchestrator.report.step_time import time_report
from orchestrator.units import format_duration
from tests.unit.planning.configurations import cpu_cluster, plan_of, run_config
from tests.unit.planning.cost.steps import gpu_run


def shown(plan) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        for part in time_report(plan.time, plan.time_unknown):
            console.print(part)
    return captured.get()


def test_every_large_component_is_listed_with_its_reason():
    plan = plan_of(gpu_run(parallelism__pipeline_parallel_size=4, training__gradient_accumulation_steps=8))
    said = shown(plan)
    for word in ("matrix products", "pipeline bubble", "8 micro-batches", "gradient reduction", "predicted:", "(MFU)"):
        assert word in said


def test_an_unknown_time_names_the_options_that_would_give_it():
    said = shown(plan_of(run_config(cluster=cpu_cluster(), precision__dtype=Precision.bf16)))
    assert said.startswith("time of a step: unknown")
    assert "cluster.memory_bandwidth_gbps" in said


@pytest.mark.parametrize(("seconds", "text"), [(3.214, "3.21 s"), (0.412, "412 ms"), (0.00041, "0.41 ms")])
def test_durations(seconds, text):
    assert format_duration(seconds) == text
