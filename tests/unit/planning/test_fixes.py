"""What is suggested for a run that does not fit really fits."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import AttentionImplementation, OffloadDevice, Precision, RecomputePolicy
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.fixes import find_fixes
from orchestrator.units import GIB
from tests.unit.planning.configurations import (
    LLAMA_2_70B,
    changed,
    cpu_cluster,
    gpu_cluster,
    overridden,
    plan_of,
    preset,
    run_config,
)

MACHINE = 64 * GIB
MICRO_ONE = {"training__train_micro_batch_size_per_gpu": 1, "training__gradient_accumulation_steps": 1}


def llama_2_70b(**changes):
    """Llama-2-70B on one 80 GB device."""
    config = run_config(
        model=LLAMA_2_70B,
        cluster=preset("cluster", "dgx_a100_80", ClusterConfig),
        cluster__devices_per_host=1,
        **MICRO_ONE,
    )
    return changed(config, **changes)


def small_devices(gib, **changes):
    return run_config(cluster=gpu_cluster(device_memory_gib=gib), **changes)


def fixes_of(config, hosts=None):
    plan = plan_of(config, hosts=hosts)
    assert plan.verdict == "infeasible", plan.findings
    return find_fixes(config, plan, hosts=hosts, machine_memory_bytes=MACHINE)


CONFIGURATIONS = {
    "llama_2_70b on one device": llama_2_70b(),
    "llama_2_70b with a global batch": llama_2_70b(training__train_batch_size=512, training__gradient_accumulation_steps=None),
    "many activations": small_devices(20.0, training__train_micro_batch_size_per_gpu=32, zero__stage=2),
    "large buckets": small_devices(4.3, zero__stage=2, activation_checkpointing__policy=RecomputePolicy.full),
    "a pipeline": small_devices(4.5, parallelism__pipeline_parallel_size=2),
    "all sizes given": small_devices(
        16.0,
        zero__stage=2,
        training__train_batch_size=1024,
        training__train_micro_batch_size_per_gpu=32,
        training__gradient_accumulation_steps=4,
    ),
    "accumulation given": small_devices(
        16.0,
        zero__stage=2,
        training__train_batch_size=1024,
        training__train_micro_batch_size_per_gpu=None,
        training__gradient_accumulation_steps=4,
    ),
    "a data-parallel size given": small_devices(
        4.0,
        zero__stage=3,
        parallelism__data_parallel_size=8,
        activation_checkpointing__policy=RecomputePolicy.full,
    ),
    "a cpu": run_config(cluster=cpu_cluster(), model__num_hidden_layers=120),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_fix_really_fits_and_says_what_it_needs(name):
    config = CONFIGURATIONS[name]
    fixes = fixes_of(config)
    assert fixes
    for fix in fixes:
        plan = plan_of(overridden(config, fix.overrides))
        assert plan.fits and not plan.fits_narrowly, (fix.overrides, plan.findings)
        assert fix.device_bytes == max(entry.device_bytes for entry in plan.memory.device)
        assert fix.host_bytes == max(entry.peak_bytes for entry in plan.memory.host)
        assert fix.to_dict()["overrides"] == list(fix.overrides)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_global_batch_stays_or_the_description_says_so(name):
    config = CONFIGURATIONS[name]
    before = plan_of(config).layout.train_batch_size
    for fix in fixes_of(config):
        after = plan_of(overridden(config, fix.overrides)).layout.train_batch_size
        assert after == before or f"grows from {before} to {after}" in fix.description
        assert after == before or config.training.train_batch_size is None


def test_llama_2_70b_on_one_device():
    config = llama_2_70b()
    (finding,) = [finding for finding in plan_of(config).findings if finding.rule == "device-memory"]
    assert "TiB more than the 79.14 GiB" in finding.message
    fixes = fixes_of(config)
    assert all("zero.stage=3" in fix.overrides for fix in fixes)
    hosts = [int(override.split("=")[1]) for fix in fixes for override in fix.overrides if "cluster.hosts" in override]
    assert hosts == sorted(hosts, reverse=True) and hosts
    assert "offload.optimizer_device=cpu" in fixes[-1].overrides


def test_a_single_change_is_preferred_and_the_cheapest_comes_first():
    fixes = fixes_of(CONFIGURATIONS["many activations"])
    assert fixes[0].overrides == ("activation_checkpointing.policy=full",)
    assert any("training.train_micro_batch_size_per_gpu=" in " ".join(fix.overrides) for fix in fixes)


def test_a_smaller_micro_batch_is_no_smaller_than_it_must_be():
    config = CONFIGURATIONS["many activations"]
    (fix,) = [fix for fix in fixes_of(config) if fix.overrides[0].startswith("training.train_micro_batch")]
    chosen = plan_of(overridden(config, fix.overrides)).layout
    twice = changed(
        config,
        training__train_micro_batch_size_per_gpu=2 * chosen.train_micro_batch_size_per_gpu,
        training__gradient_accumulation_steps=chosen.gradient_accumulation_steps // 2,
    )
    assert not plan_of(twice).fits


def test_bf16_optimizer_can_send_what_it_accumulates():
    config = small_devices(13.0, training__train_micro_batch_size_per_gpu=1)
    needed = plan_of(config).memory.device[0].device_bytes / GIB
    tight = changed(config, cluster__device_memory_gib=needed * 0.99)
    overrides = [fix.overrides for fix in fixes_of(changed(tight, planner__memory_margin=0.0))]
    assert ("communication.communication_data_type=fp32",) in overrides


def test_a_hostfile_leaves_no_more_hosts_to_suggest():
    config = llama_2_70b()
    assert fixes_of(config, hosts=[Host(name="a", slots=1)]) == ()


def test_nothing_is_suggested_for_a_plan_that_fits_or_is_invalid():
    for config in (run_config(), run_config(zero__stage=9)):
        plan = plan_of(config)
        assert find_fixes(config, plan, hosts=None, machine_memory_bytes=MACHINE) == ()


def test_the_configuration_is_left_as_it_was():
    config = llama_2_70b()
    before = repr(config)
    fixes_of(config)
    assert repr(config) == before


def test_a_full_host_is_helped_by_more_hosts():
    config = llama_2_70b(zero__stage=3, offload__optimizer_device=OffloadDevice.cpu, offload__param_device=OffloadDevice.cpu)
    assert any("cluster.hosts=2" in fix.overrides for fix in fixes_of(config))


def test_a_fp16_run_is_helped_too():
    config = llama_2_70b(precision__dtype=Precision.fp16)
    assert fixes_of(config)


def test_sequence_parallelism_is_suggested_before_what_costs_speed():
    base = {"parallelism__tensor_parallel_size": 8, "training__train_micro_batch_size_per_gpu": 32}
    whole, sharded = (
        plan_of(run_config(**base, parallelism__sequence_parallel=sharded)).memory.device[0].device_bytes / GIB
        for sharded in (False, True)
    )
    between = run_config(**base, cluster=gpu_cluster(device_memory_gib=(whole + sharded) / 2), planner__memory_margin=0.0)
    assert fixes_of(between)[0].overrides == ("parallelism.sequence_parallel=true",)


def test_a_balanced_partition_is_suggested_for_a_stage_that_is_too_full():
    base = {
        "parallelism__pipeline_parallel_size": 2,
        "training__train_micro_batch_size_per_gpu": 16,
        "training__gradient_accumulation_steps": 16,
    }
    first, second = (entry.device_bytes / GIB for entry in plan_of(run_config(**base)).memory.device)
    tight = run_config(**base, cluster=gpu_cluster(device_memory_gib=(2 * first + second) / 3), planner__memory_margin=0.0)
    assert fixes_of(tight)[0].overrides == ("parallelism.partition_method=balanced",)
    (finding,) = [finding for finding in plan_of(tight).findings if finding.rule == "device-memory"]
    assert "parallelism.partition_method=balanced" in finding.fix


def test_eager_attention_is_suggested_to_be_computed_again_by_itself():
    base = {"training__train_micro_batch_size_per_gpu": 16, "model__attention_implementation": AttentionImplementation.eager}
    needs = [
        plan_of(run_config(**base, activation_checkpointing__policy=policy)).memory.device[0].device_bytes / GIB
        for policy in (RecomputePolicy.none, RecomputePolicy.selective)
    ]
    between = run_config(**base, cluster=gpu_cluster(device_memory_gib=sum(needs) / 2), planner__memory_margin=0.0)
    assert fixes_of(between)[0].overrides == ("activation_checkpointing.policy=selective",)


def test_a_full_host_is_helped_by_memory_that_is_not_page_locked_and_by_parameters_on_the_device():
    everything = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu, "offload__param_device": OffloadDevice.cpu}
    needs = [
        plan_of(run_config(**(everything | change))).memory.host[0].peak_bytes / GIB
        for change in ({}, {"offload__pin_memory": False}, {"offload__param_device": OffloadDevice.none})
    ]
    tight = run_config(**everything, cluster=gpu_cluster(host_memory_gib=(needs[0] + max(needs[1:])) / 2, devices_per_host=8))
    overrides = [fix.overrides for fix in fixes_of(changed(tight, planner__memory_margin=0.0))]
    assert ("offload.pin_memory=false",) in overrides
    assert ("offload.param_device=none",) in overrides


def test_a_change_that_would_fit_only_narrowly_is_not_offered():
    base = {"training__train_micro_batch_size_per_gpu": 32, "zero__stage": 2}
    recomputed = (
        plan_of(run_config(**base, activation_checkpointing__policy=RecomputePolicy.full)).memory.device[0].device_bytes
    )
    barely = run_config(**base, cluster=gpu_cluster(device_memory_gib=recomputed / GIB * 1.01))
    assert ("activation_checkpointing.policy=full",) not in [fix.overrides for fix in fixes_of(barely)]
    roomy = changed(barely, planner__memory_margin=0.0)
    assert ("activation_checkpointing.policy=full",) in [fix.overrides for fix in fixes_of(roomy)]
