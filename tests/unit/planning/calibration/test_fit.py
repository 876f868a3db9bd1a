"""A fit finds constants that were known beforehand, and leaves alone what it cannot know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config.enums import Accelerator, Precision, RecomputePolicy
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.calibration.constants import CONSTANTS
from orchestrator.planning.calibration.cpu import GUESSED, with_guessed_speeds
from orchestrator.planning.calibration.fit import Calibration, MeasuredStep, fit_constants, predicted_seconds
from tests.unit.planning.calibration.runs import gpu_runs, measured, run_of
from tests.unit.planning.configurations import changed, run_config

TRUTH = {"matrix_products": 0.8, "memory": 0.75, "links": 0.6, "link_latency": 1.8, "host_adam": 0.5, "step_overhead": 2.0}


def errors(runs: list[MeasuredStep], calibration: Calibration) -> list[float]:
    return [abs(predicted_seconds(run, calibration.factors) / run.seconds - 1) for run in runs]


def test_no_more_than_eight_constants_are_fitted() -> None:
    assert len(CONSTANTS) <= 8
    fields = [field for constant in CONSTANTS for field in constant.fields]
    assert len(fields) == len(set(fields))


def test_runs_of_the_preset_itself_change_nothing() -> None:
    runs = measured(gpu_runs(), {})
    calibration = fit_constants(runs)
    assert calibration.predicted_after == pytest.approx([run.seconds for run in runs], rel=1e-6)
    assert all(factor == pytest.approx(1, rel=1e-6) for factor in calibration.factors.values())


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_perturbed_constants_are_recovered(noise: float) -> None:
    runs = measured(gpu_runs(), TRUTH, noise=noise)
    calibration = fit_constants(runs)
    assert max(errors(measured(gpu_runs(), TRUTH), calibration)) < 0.08
    found = {fitted.constant.name: fitted for fitted in calibration.constants}
    for name in ("matrix_products", "links", "host_adam"):
        assert calibration.factors[name] == pytest.approx(TRUTH[name], rel=0.2), name
        assert found[name].is_determined, name


def test_other_layouts_are_predicted_from_five_runs() -> None:
    runs = measured(gpu_runs(), TRUTH, noise=0.02)
    calibration = fit_constants(runs[:5])
    others = errors(runs[5:7], calibration) + errors(runs[8:], calibration)
    before = [abs(predicted_seconds(run, {}) / run.seconds - 1) for run in (*runs[5:7], *runs[8:])]
    assert max(others) < 0.15
    assert max(others) < max(before)


def test_what_no_run_depends_on_stays_as_it_was() -> None:
    calibration = fit_constants(measured(gpu_runs(), TRUTH))
    (network,) = (fitted for fitted in calibration.constants if fitted.constant.name == "network")
    assert not network.is_used and not network.is_determined
    assert network.after == network.before
    assert "network" not in calibration.factors


def test_one_run_does_not_decide_everything() -> None:
    calibration = fit_constants(measured(gpu_runs()[:1], TRUTH))
    assert sum(fitted.is_determined for fitted in calibration.constants) <= 2
    assert calibration.predicted_after[0] / calibration.predicted_before[0] > 1.05


def test_a_single_odd_run_is_not_followed() -> None:
    runs = measured(gpu_runs(), TRUTH)
    odd = [*runs[:-1], replace(runs[-1], seconds=3 * runs[-1].seconds)]
    assert sorted(errors(runs[:-1], fit_constants(odd)))[len(runs) // 2] < 0.1


def test_a_share_never_exceeds_its_label() -> None:
    calibration = fit_constants(measured(gpu_runs(), {"matrix_products": 2.0, "memory": 2.0}))
    shares = [fitted.after for fitted in calibration.constants if fitted.constant.is_share]
    assert max(shares) <= 1 + 1e-9


def test_the_order_of_the_runs_does_not_matter() -> None:
    runs = measured(gpu_runs(), TRUTH, noise=0.03)
    forward, backward = fit_constants(runs), fit_constants(runs[::-1])
    assert forward.factors == pytest.approx(dict(backward.factors), rel=1e-3)


def cpu_runs() -> list[MeasuredStep]:
    """Small runs on a CPU host of which nothing is known but the number of its processes."""
    host = ClusterConfig(
        name="cpu", devices_per_host=2, accelerator=Accelerator.cpu, device_name="CPU", precisions=[Precision.fp32]
    )
    small = run_config(
        cluster=host,
        precision__dtype=Precision.fp32,
        model__hidden_size=256,
        model__intermediate_size=704,
        model__num_hidden_layers=4,
        model__num_attention_heads=4,
        model__num_key_value_heads=2,
        model__vocab_size=4096,
        data__sequence_length=256,
    )
    layouts = [
        {"zero__stage": 0},
        {"zero__stage": 3, "data__sequence_length": 64},
        {"zero__stage": 1, "training__train_micro_batch_size_per_gpu": 8, "training__gradient_accumulation_steps": 1},
        {"zero__stage": 2, "model__num_hidden_layers": 8},
        {"cluster__devices_per_host": 1, "zero__stage": 0, "data__sequence_length": 32},
        {"zero__stage": 1},
        {"zero__stage": 2, "training__gradient_accumulation_steps": 8},
        {"zero__stage": 3, "training__train_micro_batch_size_per_gpu": 1},
        {"zero__stage": 1, "activation_checkpointing__policy": RecomputePolicy.full},
        {"parallelism__tensor_parallel_size": 2},
        {"parallelism__pipeline_parallel_size": 2, "training__gradient_accumulation_steps": 4},
        {"cluster__devices_per_host": 1, "zero__stage": 1},
        {"zero__stage": 0, "training__train_micro_batch_size_per_gpu": 4},
    ]
    runs = [run_of(changed(small, **layout)) for layout in layouts]
    return [
        run_of(changed(small, **layout), cluster=with_guessed_speeds(run.step.cluster, Precision.fp32, threads=1))
        for run, layout in zip(runs, layouts, strict=True)
    ]


@pytest.mark.parametrize("slower", [0.5, 1.0, 4.0, 20.0])
def test_five_runs_on_an_unknown_cpu_predict_eight_others(slower: float) -> None:
    truth = {
        "matrix_products": 0.6 / slower,
        "memory": 1.5 / slower,
        "launches": 2.0 * slower,
        "links": 0.7 / slower,
        "link_latency": 2.0 * slower,
        "step_overhead": 0.7 * slower,
    }
    runs = measured(cpu_runs(), truth, noise=0.05)
    calibration = fit_constants(runs[:5], GUESSED)
    others = sorted(errors(runs[5:], calibration))
    assert (others[3] + others[4]) / 2 <= 0.15
    assert others[-1] <= 0.30
