"""The estimate of a whole run."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import OffloadDevice, PipelineSchedule, Precision, RecomputePolicy
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.memory.device import Phase
from orchestrator.planning.memory.host import LAUNCHER_BYTES, PROCESS_BYTES
from orchestrator.planning.memory.levels import OVERHEADS
from orchestrator.units import GIB
from tests.unit.planning.configurations import cpu_cluster, gpu_cluster, plan_of, run_config

OFFLOAD = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu, "offload__param_device": OffloadDevice.cpu}


FULL = {"activation_checkpointing__policy": RecomputePolicy.full, "training__train_micro_batch_size_per_gpu": 16}
TENSOR = {"parallelism__tensor_parallel_size": 4, "zero__stage": 3}


def memory_of(hosts=None, **changes):
    plan = plan_of(run_config(**changes), hosts=hosts)
    assert plan.memory is not None, plan.findings
    return plan.memory


def device_bytes(**changes):
    return max(entry.device_bytes for entry in memory_of(**changes).device)


def test_components_add_up_and_the_levels_nest():
    for changes in ({}, {"zero__stage": 3}, OFFLOAD, {"parallelism__pipeline_parallel_size": 4}, {"zero__stage": 0}):
        for entry in memory_of(**changes).device:
            assert sum(entry.components.values()) == entry.allocated_bytes
            assert entry.reserved_bytes == round(entry.allocated_bytes * (1 + OVERHEADS.fragmentation))
            groups = "parallelism__pipeline_parallel_size" in changes
            assert entry.device_bytes == entry.reserved_bytes + round(1.8 * GIB) + groups * OVERHEADS.communicator_bytes
            for size, interval in (
                (entry.allocated_bytes, entry.levels.allocated_interval),
                (entry.reserved_bytes, entry.levels.reserved_interval),
                (entry.device_bytes, entry.levels.device_interval),
            ):
                assert interval.holds(size)
            assert entry.capacity_bytes == round(79.14 * GIB)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"activation_checkpointing__policy": RecomputePolicy.full}, {}),
        ({"training__train_micro_batch_size_per_gpu": 1}, {}),
        ({"data__sequence_length": 512}, {}),
        ({"zero__stage": 2}, {"zero__stage": 1}),
        ({"zero__stage": 2, "zero__reduce_bucket_size": 10**6}, {"zero__stage": 2}),
        ({"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu}, {"zero__stage": 2}),
        ({"parallelism__tensor_parallel_size": 4}, {}),
        (
            {"parallelism__tensor_parallel_size": 4, "parallelism__sequence_parallel": True},
            {"parallelism__tensor_parallel_size": 4},
        ),
        ({**FULL, "activation_checkpointing__partition_activations": True, **TENSOR}, {**FULL, **TENSOR}),
        ({**FULL, "activation_checkpointing__cpu_checkpointing": True, **TENSOR}, {**FULL, **TENSOR}),
        ({"training__freeze": ["layers.[0-9]\\."]}, {}),
        (
            {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu},
            {
                "zero__stage": 3,
                "zero__sub_group_size": 10**6,
                "offload__optimizer_device": OffloadDevice.cpu,
                "offload__optimizer_ratio": 0.5,
            },
        ),
        ({"zero__stage": 3, "cluster": gpu_cluster(hosts=4)}, {"zero__stage": 3}),
        ({"precision__dtype": Precision.bf16}, {"precision__dtype": Precision.fp32}),
    ],
)
def test_what_saves_memory_saves_memory(less, more):
    assert device_bytes(**less) < device_bytes(**more)


def test_the_first_stage_of_a_pipeline_holds_most_activations_and_the_last_the_logits():
    stages = memory_of(
        parallelism__pipeline_parallel_size=4,
        training__gradient_accumulation_steps=16,
        communication__communication_data_type=Precision.fp32,
        data__sequence_length=2048,
        training__train_micro_batch_size_per_gpu=8,
    ).device
    assert [list(entry.ranks) for entry in stages] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    activations = [entry.components["activations"] for entry in stages]
    assert activations == sorted(activations, reverse=True)
    assert activations[1] / 3 == pytest.approx(activations[2] / 2, rel=0.01)
    assert [Phase.loss == entry.phase for entry in stages] == [False, False, False, True]
    assert ["logits" in entry.components for entry in stages] == [False, False, False, True]


def test_gpipe_holds_every_micro_batch():
    one, other = (
        memory_of(
            parallelism__pipeline_parallel_size=2,
            parallelism__schedule=schedule,
            training__gradient_accumulation_steps=8,
            training__train_micro_batch_size_per_gpu=16,
        )
        for schedule in (PipelineSchedule.one_f_one_b, PipelineSchedule.gpipe)
    )
    assert other.device[0].components["activations"] == 4 * one.device[0].components["activations"]


def test_dual_pipe_v_holds_nearly_the_same_everywhere():
    stages = memory_of(
        parallelism__pipeline_parallel_size=4,
        parallelism__schedule=PipelineSchedule.dual_pipe_v,
        training__gradient_accumulation_steps=8,
        training__train_micro_batch_size_per_gpu=16,
    ).device
    activations = [entry.components["activations"] for entry in stages]
    assert max(activations) < 1.1 * min(activations)
    first = memory_of(
        parallelism__pipeline_parallel_size=4,
        training__gradient_accumulation_steps=8,
        training__train_micro_batch_size_per_gpu=16,
    ).device[0]
    # Nine chunks of two layers where 1F1B has four of four.
    assert activations[1] == pytest.approx(9 / 8 * first.components["activations"], rel=0.02)


def test_a_tied_embedding_is_not_copied_when_dual_pipe_v_has_both_ends_on_one_rank():
    tied = {
        "model__tie_word_embeddings": True,
        "parallelism__pipeline_parallel_size": 2,
        "training__gradient_accumulation_steps": 8,
    }
    last = memory_of(**tied).device[-1]
    folded = memory_of(**tied, parallelism__schedule=PipelineSchedule.dual_pipe_v).device
    whole = plan_of(run_config(model__tie_word_embeddings=True)).model
    assert sum(entry.components["parameters"] for entry in folded) == 2 * whole.num_parameters
    assert last.components["parameters"] > folded[1].components["parameters"]


def test_inputs_in_host_memory_are_counted_there():
    kept = {**FULL, "activation_checkpointing__cpu_checkpointing": True}
    (host,) = memory_of(**kept).host
    assert host.components["activations"] == 8 * 16 * 16 * 1024 * 1024 * 2
    assert host.step_bytes == sum(host.components.values())
    (plain,) = memory_of(**FULL).host
    assert "activations" not in plain.components
    (device,) = memory_of(**kept, cluster=cpu_cluster()).device
    (other,) = memory_of(**FULL, cluster=cpu_cluster()).device
    assert device.allocated_bytes >= other.allocated_bytes


def test_a_host_has_its_processes_and_what_they_offload():
    (host,) = memory_of().host
    assert host.step_bytes == LAUNCHER_BYTES + 8 * PROCESS_BYTES == sum(host.components.values())
    assert host.host == "localhost"
    assert host.save_bytes > host.step_bytes
    (offloading,) = memory_of(**OFFLOAD).host
    parameters = plan_of(run_config()).model.num_parameters
    assert offloading.components["optimizer_states"] == pytest.approx(12 * parameters, rel=1e-6)
    assert offloading.start_bytes < offloading.step_bytes


def test_unequal_hosts_are_counted_by_their_own_ranks():
    hosts = [Host(name="a", slots=6), Host(name="b", slots=2)]
    big, small = memory_of(hosts, **OFFLOAD).host
    assert (big.host, small.host) == ("a", "b")
    assert (big.step_bytes - LAUNCHER_BYTES) == 3 * (small.step_bytes - LAUNCHER_BYTES)


def test_only_the_first_replica_writes_the_model():
    hosts = [Host(name="a", slots=4), Host(name="b", slots=4)]
    first, second = memory_of(hosts).host
    assert first.step_bytes == second.step_bytes
    assert first.save_bytes > second.save_bytes


def test_hosts_hold_the_stages_that_their_ranks_are_in():
    hosts = [Host(name=name, slots=2) for name in "abcd"]
    memories = memory_of(
        hosts,
        parallelism__pipeline_parallel_size=4,
        offload__optimizer_device=OffloadDevice.cpu,
        model__num_hidden_layers=16,
    ).host
    states = [entry.components["optimizer_states"] for entry in memories]
    assert states[0] == pytest.approx(states[3], rel=1e-4)
    assert states[0] > states[1] == states[2]


def test_on_a_cpu_a_hosts_memory_is_that_of_its_ranks():
    memory = memory_of(cluster=cpu_cluster())
    (device,), (host,) = memory.device, memory.host
    assert host.components == {"launcher": LAUNCHER_BYTES, "processes": 2 * device.device_bytes}
    assert device.capacity_bytes == 32 * GIB
    assert "reduce_buckets" in device.components or device.phase is not Phase.reduction


def test_on_a_cpu_offloaded_states_stay_in_the_process():
    offload = {"zero__stage": 2, "cluster": cpu_cluster()}
    (kept,) = memory_of(**offload).device
    (offloaded,) = memory_of(**offload, offload__optimizer_device=OffloadDevice.cpu).device
    assert offloaded.components["offloaded_states"] > kept.components["optimizer_states"]
    (host,) = memory_of(**offload, offload__optimizer_device=OffloadDevice.cpu).host
    assert host.components == {"launcher": LAUNCHER_BYTES, "processes": 2 * offloaded.device_bytes}


def test_nvme_holds_what_leaves_ram():
    memory = memory_of(
        zero__stage=3,
        offload__optimizer_device=OffloadDevice.nvme,
        offload__nvme_path="/disk",
        cluster=gpu_cluster(nvme_gib=1000.0, hosts=2),
    )
    parameters = plan_of(run_config()).model.num_parameters
    assert [disk.capacity_bytes for disk in memory.nvme] == [1000 * GIB] * 2
    assert sum(disk.bytes for disk in memory.nvme) == pytest.approx(16 * parameters, rel=1e-6)


def test_many_hosts_are_planned_as_fast_as_their_kinds():
    memory = memory_of(cluster=gpu_cluster(hosts=4096), zero__stage=3)
    assert len(memory.host) == 4096
    assert memory.host[-1].host == "host-4096"
    assert len({id(entry.components) for entry in memory.host}) <= 2


PIPELINE = {"parallelism__pipeline_parallel_size": 4}


@pytest.mark.parametrize("changes", [{}, {"zero__stage": 2}, {"zero__stage": 3}, OFFLOAD, PIPELINE, {"cluster": cpu_cluster()}])
def test_every_phase_has_its_three_levels(changes):
    for entry in memory_of(**changes).device:
        assert list(entry.phases) == list(Phase)
        assert max(memory.levels.device_bytes for memory in entry.phases.values()) == entry.device_bytes
        assert entry.phases[entry.phase].components == entry.components
        shown = [memory.levels.device_interval.high for memory in entry.phases.values()]
        assert shown == sorted(shown) or "cluster" in changes  # only a GPU's allocator keeps what it freed
        for memory in entry.phases.values():
            levels = memory.levels
            assert sum(memory.components.values()) == levels.allocated_bytes
            assert levels.allocated_bytes <= levels.reserved_bytes <= levels.device_bytes
            assert levels.device_interval.holds(levels.device_bytes)
        start, save = entry.phases[Phase.start], entry.phases[Phase.save]
        assert "activations" not in start.components
        assert start.levels.allocated_bytes <= save.levels.allocated_bytes < entry.allocated_bytes


def test_a_monitor_never_shows_more_than_the_device_has():
    for micro_batch in (1, 32, 64, 90):
        (entry,) = memory_of(training__train_micro_batch_size_per_gpu=micro_batch).device
        assert entry.levels.device_interval.high <= max(entry.capacity_bytes, entry.device_bytes)


@pytest.mark.parametrize(
    ("lower", "component"),
    [
        ({"zero__stage": 2, "zero__reduce_bucket_size": 10**7}, "reduce_buckets"),
        ({"zero__stage": 3, "zero__stage3_max_live_parameters": 10**7}, "gathered_parameters"),
        ({"zero__stage": 3, "zero__stage3_max_reuse_distance": 10**7}, "gathered_parameters"),
        ({"zero__stage": 3, "zero__stage3_prefetch_bucket_size": 10**5}, "gathered_parameters"),
        ({"zero__stage": 3, "zero__sub_group_size": 10**6}, "optimizer_step"),
        ({"zero__stage": 2, "zero__overlap_comm": False}, "reduce_buckets"),
    ],
)
def test_a_setting_that_is_lowered_shows(lower, component):
    stage = {"zero__stage": lower["zero__stage"], "model__num_hidden_layers": 64}
    stage |= {"zero__overlap_comm": True} if "zero__overlap_comm" in lower else {}

    def most(**changes):
        (entry,) = memory_of(**{**stage, **changes}).device
        return max(memory.components.get(component, 0) for memory in entry.phases.values())

    assert most(**lower) < most()


def test_resuming_reads_the_files_of_every_process():
    for stage in (1, 3):
        (host,) = memory_of(zero__stage=stage).host
        parameters = plan_of(run_config()).model.num_parameters
        read = host.load_bytes - LAUNCHER_BYTES - 8 * PROCESS_BYTES
        assert read == pytest.approx(12 * parameters + (8 * 2 * parameters if stage == 1 else 0), rel=0.001)


def test_a_process_makes_the_largest_parameter_whole_before_it_keeps_its_part():
    for tensor in (1, 4):
        (host,) = memory_of(parallelism__tensor_parallel_size=tensor).host
        assert host.start_bytes == LAUNCHER_BYTES + 8 * (PROCESS_BYTES + 4 * 32000 * 1024)
