"""The search: nothing better is lost, nothing found is illegal, and more of anything never makes the best plan slower."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.config.enums import Objective, OffloadDevice, PipelineSchedule, Precision, RecomputePolicy
from orchestrator.config.planner import PlannerFix
from orchestrator.config.schema import RunConfig
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.plan import make_plan
from orchestrator.planning.search import search as search_module
from orchestrator.planning.search.bounds import combination_bytes, combination_seconds
from orchestrator.planning.search.search import SearchResult, chosen_values, configured, search
from orchestrator.planning.search.space import (
    Combination,
    fastest_combinations,
    host_counts,
    is_wanted,
    slower_combinations,
)
from orchestrator.units import GIB
from tests.unit.planning.configurations import cpu_cluster, gpu_cluster, plan_of, run_config

MACHINE = 64 * GIB


def planned_config(**changes: Any) -> RunConfig:
    """A small Llama on 4 GPUs whose memory decides, with all speeds known and 16 sequences a step."""
    speeds = {
        "bf16_tflops": 312.0,
        "fp32_tflops": 19.5,
        "memory_bandwidth_gbps": 2039.0,
        "device_link_gbps": 300.0,
        "host_link_gbps": 31.0,
        "network_gbps": 50.0,
    }
    batch = {
        "training__train_batch_size": 16,
        "training__train_micro_batch_size_per_gpu": None,
        "training__gradient_accumulation_steps": None,
    }
    config = run_config(**batch | {name: value for name, value in changes.items() if not name.startswith("cluster__")})
    fields = {name.removeprefix("cluster__"): value for name, value in changes.items() if name.startswith("cluster__")}
    config.cluster = gpu_cluster(**{**speeds, "devices_per_host": 4, "device_memory_gib": 10.0, **fields})
    return config


def searched(config: RunConfig) -> SearchResult:
    return search(config, hosts=None, machine_memory_bytes=MACHINE)


def seconds(result: SearchResult) -> float:
    assert result.best is not None, result.refused
    return result.best.time.step_seconds


def all_combinations(config: RunConfig) -> list[Combination]:
    plan = plan_of(config)
    assert plan.model is not None
    waiting = list(
        fastest_combinations(
            config,
            plan.model,
            devices={count: count * config.cluster.devices_per_host for count in host_counts(config.cluster.hosts)},
            train_batch_size=16,
        )
    )
    found = []
    while waiting:
        combination = waiting.pop()
        waiting += slower_combinations(config, combination)
        found.append(combination)
    return [combination for combination in found if is_wanted(config, combination)]


def test_a_cpu_moves_nothing_to_the_ram_it_is_in_already_unless_told_to():
    config = planned_config()
    config.cluster = cpu_cluster(devices_per_host=4)
    devices = {(found.optimizer_device, found.param_device) for found in all_combinations(config)}
    assert devices == {(OffloadDevice.none, OffloadDevice.none)}
    config.planner.fix = PlannerFix(optimizer_device=OffloadDevice.cpu)
    assert {found.optimizer_device for found in all_combinations(config)} == {OffloadDevice.cpu}


@pytest.mark.parametrize("memory_gib", [6.0, 10.0, 40.0])
def test_no_choice_is_better_than_the_best(memory_gib):
    """Every choice of the space is planned as ``validate`` plans it."""
    config = planned_config(cluster__device_memory_gib=memory_gib, cluster__devices_per_host=2)
    best = seconds(searched(config))
    for combination in all_combinations(config):
        for index in range(combination.num_choices):
            values = combination.choice(index).values
            other = configured(config, {**values, "cluster.hosts": 1})
            plan = make_plan(other, hosts=None, machine_memory_bytes=MACHINE)
            if plan.fits and not plan.fits_narrowly:
                assert plan.time is not None
                assert plan.time.step_seconds >= best * (1 - 1e-9), values


def test_bounds_of_arrays_are_the_plans_own_figures():
    config = planned_config(cluster__hosts=4)
    plan = plan_of(config)
    assert plan.model is not None and plan.cluster is not None
    draw = random.Random(0)
    compared = 0
    for combination in draw.sample(all_combinations(config), 60):
        bounds = combination_seconds(config, plan.model, plan.cluster, combination)
        sizes = combination_bytes(config, plan.model, plan.cluster, combination)
        assert sizes is not None
        index = draw.randrange(combination.num_choices)
        choice = combination.choice(index)
        own = configured(config, {**choice.values, "cluster.hosts": choice.hosts})
        alone = make_plan(own, hosts=None, machine_memory_bytes=MACHINE)
        if alone.memory is None or alone.time is None:
            continue
        exact = alone.time.step_seconds
        if choice.schedule is PipelineSchedule.dual_pipe_v:
            assert bounds[index] <= exact * (1 + 1e-9)
        else:
            assert bounds[index] == pytest.approx(exact, rel=1e-9)
        assert sizes[index] == max(entry.device_bytes for entry in alone.memory.device)
        compared += 1
    assert compared > 30


def test_slower_combinations_are_never_faster():
    config = planned_config(offload__nvme_path="/nvme")
    plan = plan_of(config)
    assert plan.model is not None and plan.cluster is not None
    for combination in all_combinations(config):
        bound = combination_seconds(config, plan.model, plan.cluster, combination)
        for slower in slower_combinations(config, combination):
            assert np.all(combination_seconds(config, plan.model, plan.cluster, slower) >= bound * (1 - 1e-9))


@pytest.mark.parametrize(("memory_gib", "sequence_length"), [(8.0, 1024), (20.0, 8192)])
def test_twice_the_hosts_are_never_slower(memory_gib, sequence_length):
    changes = {"cluster__device_memory_gib": memory_gib, "data__sequence_length": sequence_length}
    changes |= {"model__max_position_embeddings": sequence_length, "cluster__network_gbps": 1.0}
    times = [seconds(searched(planned_config(cluster__hosts=hosts, **changes))) for hosts in (1, 2, 4)]
    assert times == sorted(times, reverse=True)


def test_more_memory_is_never_slower():
    times = [seconds(searched(planned_config(cluster__device_memory_gib=size))) for size in (6.0, 10.0, 40.0)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("memory_gib", [6.0, 10.0, 40.0])
def test_every_plan_that_is_shown_passes_validate(memory_gib):
    config = planned_config(cluster__device_memory_gib=memory_gib, cluster__hosts=2)
    result = searched(config)
    assert result.best is not None
    for candidate in (result.best, *result.others, *result.front):
        plan = make_plan(configured(config, chosen_values(config, candidate)), hosts=None, machine_memory_bytes=MACHINE)
        assert plan.fits and not plan.fits_narrowly
        assert plan.layout is not None and plan.layout.train_batch_size == 16


def test_the_order_of_the_candidates_does_not_change_the_answer(monkeypatch):
    config = planned_config(cluster__hosts=2)
    first = searched(config)
    for seed in range(2):
        shuffled = random.Random(seed)

        def in_another_order(*arguments: Any, shuffled: random.Random = shuffled, **named: Any) -> list[Combination]:
            combinations = list(fastest_combinations(*arguments, **named))
            shuffled.shuffle(combinations)
            order = [shuffled.sample(range(each.num_choices), each.num_choices) for each in combinations]
            names = ("hosts", "tensor_parallel_size", "data_parallel_size", "micro_batch", "micro_batches")
            return [
                replace(each, **{name: getattr(each, name)[places] for name in names})
                for each, places in zip(combinations, order, strict=True)
            ]

        monkeypatch.setattr(search_module, "fastest_combinations", in_another_order)
        other = searched(config)
        assert [found.choice for found in (other.best, *other.others)] == [
            found.choice for found in (first.best, *first.others)
        ]


@pytest.mark.parametrize(("stated", "kept"), [(None, Precision.fp32), (Precision.bf16, Precision.bf16)])
def test_gradients_are_added_up_in_the_format_that_was_asked_for(stated, kept):
    config = planned_config(cluster__device_memory_gib=40.0, precision__grad_accum_dtype=stated)
    result = searched(config)
    assert result.best is not None
    assert {found.plan.settings.grad_accum_dtype for found in (result.best, *result.others, *result.front)} == {kept}


def test_the_front_trades_time_for_memory():
    front = searched(planned_config()).front
    assert len(front) > 1
    assert [point.score for point in front] == sorted(point.score for point in front)
    assert [point.device_bytes for point in front] == sorted((point.device_bytes for point in front), reverse=True)


def test_others_differ_in_kind():
    result = searched(planned_config(cluster__hosts=2))
    assert result.best is not None
    kinds = [candidate.choice.kind for candidate in (result.best, *result.others)]
    assert len(kinds) > 1
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("tp", 2, "tensor_parallel_size"),
        ("pp", 2, "pipeline_parallel_size"),
        ("dp", 1, "data_parallel_size"),
        ("micro_batch", 4, "micro_batch"),
        ("zero_stage", 2, "zero_stage"),
        ("recompute", RecomputePolicy.full, "recompute"),
        ("optimizer_device", OffloadDevice.cpu, "optimizer_device"),
    ],
)
def test_what_is_pinned_stays(name, value, field):
    config = planned_config()
    setattr(config.planner.fix, name, value)
    result = searched(config)
    assert result.best is not None
    assert {getattr(found.choice, field) for found in (result.best, *result.others, *result.front)} == {value}


def test_the_cheapest_plan_takes_no_more_device_seconds_than_the_fastest():
    changes: dict[str, Any] = {"cluster__hosts": 8, "cluster__network_gbps": 1.0}
    fastest = searched(planned_config(**changes)).best
    cheapest = searched(planned_config(planner__objective=Objective.cost, **changes)).best
    assert fastest is not None and cheapest is not None
    spent = [found.time.step_seconds * found.choice.hosts for found in (cheapest, fastest)]
    assert spent[0] <= spent[1]


def test_fewest_hosts_is_the_first_number_that_fits():
    config = planned_config(cluster__hosts=8, cluster__device_memory_gib=2.6)
    config.planner.objective = Objective.fewest_hosts
    config.planner.fix.optimizer_device = OffloadDevice.none
    config.planner.fix.recompute = RecomputePolicy.full
    best = searched(config).best
    assert best is not None
    assert best.choice.hosts == 4
    assert searched(replace(config, cluster=replace(config.cluster, hosts=2))).best is None


def test_idle_hosts_of_a_hostfile_are_left_out_by_name():
    hosts = [Host(name=f"node{number}", slots=4) for number in range(4)]
    config = planned_config(cluster__hostfile="hostfile", cluster__network_gbps=0.01)
    result = search(config, hosts=hosts, machine_memory_bytes=MACHINE)
    assert result.best is not None
    assert result.best.choice.hosts == 1
    assert chosen_values(config, result.best)["cluster.include"] == "node0"


def test_hosts_of_different_sizes_are_used_together():
    hosts = [Host(name="large", slots=4), Host(name="small", slots=2)]
    config = planned_config(cluster__hostfile="hostfile", training__train_batch_size=12)
    result = search(config, hosts=hosts, machine_memory_bytes=MACHINE)
    assert result.best is not None
    assert result.best.num_devices == 6


def test_what_cannot_fit_says_which_capacity_forbids_it():
    result = searched(planned_config(cluster__device_memory_gib=2.0))
    assert result.best is None
    assert {entry.rule for entry in result.refused} == {"device-memory"}
    assert result.refused[0].example.endswith("a device has 2.00 GiB")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"cluster__memory_bandwidth_gbps": None}, "plan-speeds"),
        ({"training__train_batch_size": 0}, "plan-batch"),
        ({"model__hidden_size": None}, "model-size"),
        ({"optimizer__lr": -1.0}, "value-range"),
        ({"planner__memory_margin": 0.6}, "value-range"),
        ({"zero__reduce_bucket_size": 0}, "value-range"),
        ({"cluster__network_gbps": 0.0}, "value-range"),
        ({"training__freeze": [".*"]}, "freeze-all"),
    ],
)
def test_what_no_choice_can_mend_is_said_at_once(changes, rule):
    result = searched(with_options(changes))
    assert result.best is None
    assert result.num_planned == 0
    assert rule in {finding.rule for finding in result.findings}


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"planner__fix": PlannerFix(tp=3)}, "planner.fix.tp", "does not divide 4 devices"),
        ({"planner__fix": PlannerFix(dp=0)}, "planner.fix.dp", "at least 1"),
        ({"planner__fix": PlannerFix(micro_batch=5)}, "planner.fix.micro_batch", "16 sequences"),
        ({"planner__fix": PlannerFix(tp=4, pp=4)}, "planner.fix", "planner.fix.tp=4 planner.fix.pp=4"),
        ({"planner__fix": PlannerFix(zero_stage=2, pp=2)}, "planner.fix.zero_stage", "pipeline"),
        ({"planner__fix": PlannerFix(zero_stage=5)}, "planner.fix.zero_stage", "not a ZeRO stage"),
        ({"planner__fix": PlannerFix(param_device=OffloadDevice.cpu, zero_stage=2)}, "planner.fix.param_device", "stage 3"),
        ({"planner__fix": PlannerFix(optimizer_device=OffloadDevice.nvme)}, "offload.nvme_path", "no disk"),
        (
            {"planner__fix": PlannerFix(optimizer_device=OffloadDevice.cpu, zero_stage=0)},
            "planner.fix.optimizer_device",
            "ZeRO",
        ),
        ({"cluster__devices_per_host": 97}, "training.train_batch_size", "97 devices"),
    ],
)
def test_pins_without_a_choice_are_named_with_the_reason(changes, field, said):
    result = searched(with_options(changes))
    assert result.num_choices == 0
    assert [finding.field for finding in result.findings] == [field]
    assert said in result.findings[0].message
    assert {finding.rule for finding in result.findings} == {"plan-space"}


def test_an_error_that_the_best_plan_does_not_have_is_not_said_of_it():
    """ZeRO stage 0 with gradients in fp32 is wrong, and the search takes another stage."""
    result = searched(with_options({"zero__stage": 0, "precision__grad_accum_dtype": Precision.fp32}))
    assert result.best is not None
    assert "stage0-accumulation" not in {finding.rule for finding in result.findings}


def test_a_format_that_the_device_lacks_is_said_and_not_that_its_rate_is_missing():
    result = searched(with_options({"cluster__precisions": [Precision.fp16], "cluster__bf16_tflops": None}))
    assert [finding.rule for finding in result.findings] == ["device-precision"]


def with_options(changes: dict[str, Any]) -> RunConfig:
    config = planned_config()
    for name, value in changes.items():
        group, field = name.split("__", 1)
        setattr(getattr(config, group), field, value)
    return config
