"""A preset says what was found: the same steps are predicted from it."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from orchestrator.config.enums import Accelerator, Precision
from orchestrator.config.schema import ClusterConfig, RunConfig
from orchestrator.planning.calibration.cpu import with_guessed_speeds
from orchestrator.planning.calibration.fit import predicted_seconds
from orchestrator.planning.calibration.measured import all_reduce_of, measured_cluster
from orchestrator.planning.calibration.preset import calibrated_preset, preset_values
from tests.unit.planning.calibration.runs import LAYOUTS, run_of
from tests.unit.planning.configurations import changed, run_config
from tests.unit.planning.cost.steps import gpu_run, time_of

FACTORS = {"matrix_products": 0.7, "memory": 1.1, "launches": 3.0, "links": 0.5, "link_latency": 2.0, "step_overhead": 4.0}
FIGURES: dict[str, Any] = {
    "products": {"fp32": {"256": 20e9, "512": 30e9}, "bf16": {"512": 40e9}},
    "memory_bandwidth": 6e9,
    "launch_seconds": 15e-6,
    "host_link_bandwidth": None,
    "all_reduce": [
        {"ranks": 2, "bytes": 4096, "seconds": 1e-3},
        {"ranks": 2, "bytes": 10**7, "seconds": 11e-3},
    ],
    "host_adam": 5e8,
    "nvme_read": 2e9,
}


def loaded(values: dict[str, Any]) -> ClusterConfig:
    """The preset as Hydra gives it."""
    cluster = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ClusterConfig), OmegaConf.create(values)))
    assert isinstance(cluster, ClusterConfig)
    return cluster


def cpu_run(**changes: Any) -> RunConfig:
    host = ClusterConfig(
        name="cpu",
        devices_per_host=2,
        accelerator=Accelerator.cpu,
        device_name="CPU",
        precisions=[Precision.fp32, Precision.bf16],
        device_context_gib=0.5,
    )
    return changed(run_config(), **{"cluster": host, "precision__dtype": Precision.fp32, **changes})


@pytest.mark.parametrize("layout", LAYOUTS[:6])
def test_a_gpu_preset_predicts_what_the_fit_did(layout: dict[str, Any]) -> None:
    config = gpu_run("dgx_h100", **layout)
    run = run_of(config)
    values = calibrated_preset(config.cluster, run.step.cluster, FACTORS, cores_per_host=None)
    assert values["bf16_tflops"] == config.cluster.bf16_tflops
    again = changed(config, cluster=loaded(values))
    assert time_of(again).step_seconds == pytest.approx(predicted_seconds(run, FACTORS), rel=2e-3)


@pytest.mark.parametrize("cores", [None, 2])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_cpu_preset_predicts_what_the_fit_did(stage: int, cores: int | None) -> None:
    config = cpu_run(zero__stage=stage)
    bare = run_of(config, cluster=None)
    run = run_of(config, cluster=with_guessed_speeds(bare.step.cluster, Precision.fp32, threads=1))
    values = calibrated_preset(config.cluster, run.step.cluster, FACTORS, cores_per_host=cores)
    again = changed(config, cluster=loaded(values))
    assert time_of(again).step_seconds == pytest.approx(predicted_seconds(run, FACTORS), rel=2e-3)


def test_one_process_of_a_host_computes_on_all_of_its_cores() -> None:
    measured = measured_cluster(cpu_run().cluster, FIGURES, cores_per_host=2)
    slow = cpu_run(cluster=measured, zero__stage=0, data__sequence_length=1024)
    fast = changed(slow, cluster__devices_per_host=1)
    assert time_of(slow).step_seconds / time_of(fast).step_seconds > 1.5


def test_a_measured_cpu_has_rates_and_a_measured_gpu_shares_of_its_labels() -> None:
    cpu = measured_cluster(cpu_run().cluster, FIGURES, cores_per_host=None)
    assert (cpu.fp32_tflops, cpu.bf16_tflops, cpu.memory_bandwidth_gbps) == (0.03, 0.04, 6.0)
    assert cpu.device_link_gbps == pytest.approx(1.0)
    assert (cpu.speed.link_latency_us, cpu.speed.host_adam_gparams, cpu.speed.nvme_read_gbps) == (1000.0, 0.5, 2.0)
    assert loaded(preset_values(cpu)) == cpu

    figures = {**FIGURES, "products": {"bf16": {"8192": 600e12}}, "memory_bandwidth": 2.68e12}
    gpu = measured_cluster(gpu_run("dgx_h100").cluster, figures, cores_per_host=None)
    assert gpu.bf16_tflops == 989.4
    assert gpu.speed.matmul_efficiency == pytest.approx(0.606, abs=0.001)
    assert gpu.speed.memory_efficiency == pytest.approx(0.8, abs=0.001)


def test_an_all_reduce_is_a_latency_and_a_bandwidth() -> None:
    reduced = all_reduce_of(FIGURES["all_reduce"])
    assert reduced is not None
    assert (reduced.ranks, reduced.latency) == (2, 1e-3)
    assert reduced.bandwidth == pytest.approx(1e9)
    assert all_reduce_of([]) is None
