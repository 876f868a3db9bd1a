"""Memory kernels: the values that matter, and that arrays give what numbers give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deepspeed.runtime.pipe.schedule import BackwardPass, DualPipeVSchedule, ForwardPass

from orchestrator.config.enums import (
    Accelerator,
    Family,
    OffloadDevice,
    OptimizerType,
    PipelineSchedule,
    Precision,
    RecomputePolicy,
)
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.broadcast import choose, larger, smaller
from orchestrator.planning.layers import layer_activation_bytes, logits_bytes
from orchestrator.planning.memory.activations import (
    Pass,
    PassBytes,
    in_flight_micro_batches,
)
from orchestrator.planning.memory.buffers import (
    gathered_parameter_bytes,
    gradient_copy_bytes,
    optimizer_step_bytes,
    reduce_bucket_bytes,
    reduction_copy_bytes,
)
from orchestrator.planning.memory.host import (
    host_states,
    initialization_copy_bytes,
    pinned_bytes,
    save_copy_bytes,
)
from orchestrator.planning.memory.nvme import nvme_bytes
from orchestrator.planning.memory.shape import RankShape, rank_shape
from orchestrator.planning.memory.states import device_states
from orchestrator.planning.model_spec import model_spec_from_config
from orchestrator.planning.partition import layer_names, partition_at
from orchestrator.units import GIB
from tests.unit.planning.configurations import cpu_cluster, run_config

SPEC = model_spec_from_config(run_config().model)


def stage_of(start, stop, spec=SPEC):
    """Layers ``start`` to before ``stop`` of the model's list."""
    end = len(layer_names(spec))
    boundaries = sorted({0, start, stop, end})
    return partition_at(spec, boundaries).stages[boundaries.index(start)]


WHOLE = stage_of(0, SPEC.num_hidden_layers + 3)
PASS = Pass(
    micro_batch=2,
    sequence_length=1024,
    dtype_bytes=2,
    tensor_parallel_size=1,
    recompute=RecomputePolicy.none,
    accelerator=Accelerator.cuda,
)


def shape_of(parameters, largest, persistent):
    """A rank on which everything is trained."""
    return RankShape(
        parameters=parameters, trainable_parameters=parameters, largest_parameter=largest, persistent_parameters=persistent
    )


SHAPE = shape_of(10_000_000_000, 200_000_000, 300_000)
SMALL = shape_of(1_000_000, 100_000, 1000)
BILLION = 10**9

VARIANTS = {
    "stage 0 fp32": {"zero__stage": 0, "precision__dtype": Precision.fp32},
    "stage 0 fp16": {"zero__stage": 0, "precision__dtype": Precision.fp16},
    "stage 1": {},
    "stage 1 in bf16": {"precision__grad_accum_dtype": Precision.bf16},
    "stage 2": {"zero__stage": 2, "zero__overlap_comm": True},
    "stage 2 in bf16": {"zero__stage": 2, "precision__grad_accum_dtype": Precision.bf16},
    "stage 2 offload": {"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu},
    "stage 2 cpu": {"zero__stage": 2, "cluster": cpu_cluster()},
    "stage 3": {"zero__stage": 3},
    "stage 3 offload": {
        "zero__stage": 3,
        "offload__optimizer_device": OffloadDevice.cpu,
        "offload__param_device": OffloadDevice.cpu,
    },
    "stage 3 nvme": {
        "zero__stage": 3,
        "offload__optimizer_device": OffloadDevice.nvme,
        "offload__param_device": OffloadDevice.nvme,
    },
}


def settings_of(**changes):
    return resolve_settings(run_config(**changes))


class TestBroadcast:
    def test_ints_stay_ints_of_any_size(self):
        assert larger(10**30, 3, 7) == 10**30
        assert smaller(10**30, 3, 7) == 3
        assert choose(True, 10**30, 1) == 10**30
        assert choose(False, 10**30, 1) == 1

    def test_arrays_are_compared_element_by_element(self):
        first, second = np.array([1, 5]), np.array([[2], [9]])
        assert (larger(first, second) == np.maximum(first, second)).all()
        assert (smaller(first, second) == np.minimum(first, second)).all()


class TestActivations:
    @pytest.mark.parametrize(("micro_batches", "expected"), [(16, [4, 3, 2, 1]), (2, [2, 2, 2, 1]), (1, [1, 1, 1, 1])])
    def test_1f1b_holds_as_many_micro_batches_as_stages_follow(self, micro_batches, expected):
        held = in_flight_micro_batches(
            np.arange(4), pipeline_parallel_size=4, micro_batches=micro_batches, schedule=PipelineSchedule.one_f_one_b
        )
        assert list(held) == expected

    def test_gpipe_holds_all(self):
        held = in_flight_micro_batches(
            np.arange(4), pipeline_parallel_size=4, micro_batches=16, schedule=PipelineSchedule.gpipe
        )
        assert list(held) == [16] * 4

    @pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (2, 9), (4, 8), (4, 20), (8, 16)])
    def test_dual_pipe_v_holds_what_deepspeeds_steps_hold(self, stages, micro_batches):
        for rank in range(stages):
            steps = DualPipeVSchedule(micro_batches=micro_batches, stages=stages, stage_id=rank).steps()
            held, most, together = [0, 0], [0, 0], 0
            for command in (command for step in steps for command in step):
                if isinstance(command, ForwardPass | BackwardPass):
                    held[command.phase] += 1 if isinstance(command, ForwardPass) else -1
                    most = [max(pair) for pair in zip(most, held, strict=True)]
                    together = max(together, sum(held))
            expected = [
                in_flight_micro_batches(
                    rank,
                    pipeline_parallel_size=stages,
                    micro_batches=micro_batches,
                    schedule=PipelineSchedule.dual_pipe_v,
                    way_back=way_back,
                )
                for way_back in (False, True)
            ]
            assert expected == most
            assert sum(expected) == together

    @pytest.mark.parametrize(("interval", "groups"), [(1, 16), (3, 6), (4, 4), (16, 1), (100, 1)])
    def test_every_k_layers_keeps_one_input_for_each_group(self, interval, groups):
        middle = stage_of(1, 17)
        passed = replace(PASS, recompute=RecomputePolicy.every_k_layers, recompute_interval=interval)
        full = PassBytes(SPEC, replace(PASS, recompute=RecomputePolicy.full)).activations(middle, in_flight=1)
        boundary = 2 * 1024 * SPEC.hidden_size * 2
        assert full - PassBytes(SPEC, passed).activations(middle, in_flight=1) == (16 - groups) * boundary
        working = PassBytes(SPEC, passed).working(middle)
        layer = layer_activation_bytes(SPEC, micro_batch=2, sequence_length=1024, dtype_bytes=2, recompute=PASS.recompute)
        one = PassBytes(SPEC, replace(PASS, recompute=RecomputePolicy.full)).working(middle)
        assert working - one == (min(interval, 16) - 1) * layer

    def test_selective_keeps_less_than_everything_and_more_than_inputs(self):
        kept = [
            PassBytes(SPEC, replace(PASS, recompute=policy, accelerator=Accelerator.cpu, dtype_bytes=4)).activations(
                stage_of(1, 17), in_flight=1
            )
            for policy in (RecomputePolicy.full, RecomputePolicy.selective, RecomputePolicy.none)
        ]
        assert kept == sorted(kept)

    def test_kept_inputs_can_be_divided_and_moved(self):
        full = replace(PASS, recompute=RecomputePolicy.full, tensor_parallel_size=4)
        boundary = 16 * 2 * 1024 * SPEC.hidden_size * 2
        middle = stage_of(1, 17)

        def on_device(**changes):
            return PassBytes(SPEC, replace(full, **changes)).activations(middle, in_flight=3)

        def on_host(**changes):
            return PassBytes(SPEC, replace(full, **changes)).host_activations(middle, in_flight=3)

        assert on_host() == 0
        assert on_device() - on_device(partition_activations=True) == 3 * boundary * 3 // 4
        assert on_device() - on_device(sequence_parallel=True) == 3 * boundary * 3 // 4
        assert on_device() - on_device(cpu_checkpointing=True) == 3 * boundary == on_host(cpu_checkpointing=True)
        assert on_host(cpu_checkpointing=True, partition_activations=True) == 3 * boundary // 4

    def test_what_waits_in_host_memory_is_page_locked_on_a_gpu(self):
        odd = replace(PASS, recompute=RecomputePolicy.full, cpu_checkpointing=True, sequence_length=1000)
        exact = PassBytes(SPEC, replace(odd, accelerator=Accelerator.cpu)).host_activations(WHOLE, in_flight=1)
        assert exact == 16 * 2 * 1000 * SPEC.hidden_size * 2
        assert PassBytes(SPEC, odd).host_activations(WHOLE, in_flight=1) == 16 * 2 * 1024 * SPEC.hidden_size * 2

    def test_sequence_parallelism_sends_shards_between_stages(self):
        whole = replace(PASS, tensor_parallel_size=4)
        sent, shards = (
            PassBytes(SPEC, passed).pipeline_buffers(in_flight=2, pipeline_parallel_size=2)
            for passed in (whole, replace(whole, sequence_parallel=True))
        )
        assert sent == 4 * shards

    def test_layers_dominate_and_grow_with_the_micro_batches_in_flight(self):
        layers = 16 * layer_activation_bytes(
            SPEC, micro_batch=2, sequence_length=1024, dtype_bytes=2, recompute=RecomputePolicy.none
        )
        one = PassBytes(SPEC, PASS).activations(WHOLE, in_flight=1)
        assert layers < one < 1.05 * layers
        assert PassBytes(SPEC, PASS).activations(WHOLE, in_flight=3) == 3 * one

    def test_recomputation_keeps_little_and_works_on_one_layer(self):
        full = replace(PASS, recompute=RecomputePolicy.full)
        kept = PassBytes(SPEC, full).activations(WHOLE, in_flight=1)
        assert kept < 0.15 * PassBytes(SPEC, PASS).activations(WHOLE, in_flight=1)
        assert PassBytes(SPEC, full).working(WHOLE) > PassBytes(SPEC, PASS).working(WHOLE)

    def test_logits_lie_on_the_last_stage(self):
        assert PassBytes(SPEC, PASS).logits(stage_of(5, 9)) == 0
        assert PassBytes(SPEC, PASS).logits(WHOLE) == logits_bytes(SPEC, micro_batch=2, sequence_length=1024, dtype_bytes=2)

    def test_the_pipeline_engine_has_at_least_two_buffers_and_its_own_two(self):
        boundary = 2 * 1024 * SPEC.hidden_size * 2
        assert PassBytes(SPEC, PASS).pipeline_buffers(in_flight=1, pipeline_parallel_size=1) == 0
        assert PassBytes(SPEC, PASS).pipeline_buffers(in_flight=1, pipeline_parallel_size=4) == 4 * boundary
        assert PassBytes(SPEC, PASS).pipeline_buffers(in_flight=4, pipeline_parallel_size=4) == 6 * boundary

    def test_arrays(self):
        micro_batches, tensor, in_flight = np.array([1, 2, 8])[:, None], np.array([1, 2, 4]), np.array([[1], [2], [3]])
        arrays = replace(PASS, micro_batch=micro_batches, tensor_parallel_size=tensor)
        kernels = [
            lambda passed, held: PassBytes(SPEC, passed).activations(WHOLE, in_flight=held),
            lambda passed, _: PassBytes(SPEC, passed).working(WHOLE),
            lambda passed, _: PassBytes(SPEC, passed).logits(WHOLE),
            lambda passed, held: PassBytes(SPEC, passed).pipeline_buffers(in_flight=held, pipeline_parallel_size=2),
        ]
        for kernel in kernels:
            result = np.broadcast_to(kernel(arrays, in_flight), (3, 3))
            for row, column in np.ndindex(3, 3):
                one = replace(PASS, micro_batch=int(micro_batches[row, 0]), tensor_parallel_size=int(tensor[column]))
                assert result[row, column] == kernel(one, int(in_flight[row, 0]))


class TestShape:
    def test_the_whole_model_is_on_one_stage(self):
        shape = rank_shape(SPEC, [WHOLE], tensor_parallel_size=1, persistence_threshold=100_000)
        assert shape.parameters == SPEC.num_parameters
        assert shape.largest_parameter == 32000 * 1024
        assert shape.persistent_parameters == 16 * 2 * 1024

    @pytest.mark.parametrize("cut", [1, 10, 17, 18])
    def test_stages_add_up_to_the_model(self, cut):
        shapes = [
            rank_shape(SPEC, [stage_of(start, stop)], tensor_parallel_size=1, persistence_threshold=0)
            for start, stop in ((0, cut), (cut, 19))
        ]
        assert sum(shape.parameters for shape in shapes) == SPEC.num_parameters
        assert all(shape.persistent_parameters == 0 for shape in shapes)

    def test_a_tied_head_is_copied_to_the_last_stage_unless_its_rank_holds_the_embedding(self):
        tied = replace(SPEC, tie_word_embeddings=True)
        arguments = {"tensor_parallel_size": 1, "persistence_threshold": 0}
        first, last = stage_of(0, 10), stage_of(10, 19)
        assert rank_shape(tied, [last], **arguments).parameters == rank_shape(SPEC, [last], **arguments).parameters
        assert rank_shape(tied, [first, last], **arguments).parameters == tied.num_parameters

    def test_learned_positions_may_be_cut_from_the_embedding(self):
        gpt2 = replace(
            SPEC, family=Family.gpt2, tie_word_embeddings=True, num_key_value_heads=16, hf_config={"model_type": "gpt2"}
        )
        boundaries = (0, 1, 2, 20)
        sizes = [
            rank_shape(gpt2, [stage], tensor_parallel_size=2, persistence_threshold=0).parameters
            for stage in partition_at(gpt2, boundaries).stages
        ]
        assert sizes[:2] == [16000 * 1024, 2048 * 1024]

    def test_frozen_layers_are_held_and_not_trained(self):
        shares = [0.0, *[1.0] * 8, *[0.5] * 8, 1.0, 1.0]
        shape = rank_shape(SPEC, [WHOLE], tensor_parallel_size=1, persistence_threshold=0, trainable_shares=shares)
        assert shape.parameters == SPEC.num_parameters
        assert shape.trainable_parameters == SPEC.num_parameters - 32000 * 1024 - 4 * SPEC.layer_parameters

    def test_with_a_high_threshold_everything_persists(self):
        shape = rank_shape(SPEC, [stage_of(1, 3)], tensor_parallel_size=1, persistence_threshold=10**9)
        assert shape.persistent_parameters == shape.parameters == 2 * SPEC.layer_parameters


class TestBuffers:
    def test_a_gpu_gives_the_bucket_whole_and_a_cpu_what_is_used(self):
        bucket = 500_000_000
        assert reduce_bucket_bytes(settings_of(zero__stage=2), SMALL) == bucket * 2
        assert reduce_bucket_bytes(settings_of(zero__stage=2, cluster=cpu_cluster()), SMALL) == 1_000_000 * 2

    def test_overlap_doubles_the_bucket_of_stages_1_and_2(self):
        once = reduce_bucket_bytes(settings_of(zero__stage=2), SHAPE)
        assert reduce_bucket_bytes(settings_of(zero__stage=2, zero__overlap_comm=True), SHAPE) == 2 * once
        assert reduce_bucket_bytes(settings_of(zero__stage=3), SHAPE) == once

    def test_bf16_optimizer_converts_its_buffer_and_flattens_only_what_shares_a_bucket(self):
        assert reduce_bucket_bytes(settings_of(), SHAPE) == 0
        assert reduction_copy_bytes(settings_of(), SHAPE) == 10 * BILLION * 2
        in_fp32 = settings_of(communication__communication_data_type=Precision.fp32)
        assert reduction_copy_bytes(in_fp32, SHAPE) == 0
        assert reduction_copy_bytes(in_fp32, SMALL) == 1_000_000 * 4

    def test_zero_copies_a_bucket_or_the_largest_gradient(self):
        assert reduction_copy_bytes(settings_of(zero__stage=2), SHAPE) == 500_000_000 * 2
        small = settings_of(zero__stage=2, zero__reduce_bucket_size=1000)
        assert reduction_copy_bytes(small, SHAPE) == 200_000_000 * 2

    def test_live_parameters_are_bounded_by_the_settings_and_by_the_model(self):
        def gathered(shape, **changes):
            return gathered_parameter_bytes(settings_of(zero__stage=3, **changes), shape, data_parallel_size=8)

        assert gathered(SHAPE) == (BILLION + 300_000 + 200_000_000) * 2
        few = {"zero__stage3_max_live_parameters": 0, "zero__stage3_prefetch_bucket_size": 0}
        assert gathered(SHAPE, **few) == (200_000_000 + 300_000 + 200_000_000) * 2
        assert gathered(SMALL) == 2 * 1_000_000 * 2
        assert gathered_parameter_bytes(settings_of(zero__stage=2), SHAPE, data_parallel_size=8) == 0

    def test_one_rank_has_its_parameters_already(self):
        assert gathered_parameter_bytes(settings_of(zero__stage=3), SHAPE, data_parallel_size=1) == 0
        offloaded = settings_of(zero__stage=3, offload__param_device=OffloadDevice.cpu)
        assert gathered_parameter_bytes(offloaded, SHAPE, data_parallel_size=1) == (BILLION + 300_000) * 2

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"zero__stage": 0, "precision__dtype": Precision.fp32}, 0),
            ({"zero__stage": 0, "precision__dtype": Precision.fp16}, 8 * 10 * BILLION),
            ({}, 0),
            ({"precision__dtype": Precision.fp16}, 6 * 10 * BILLION // 8),
            ({"zero__stage": 2}, 0),
            ({"zero__stage": 2, "precision__dtype": Precision.fp16}, 6 * 10 * BILLION // 8),
            ({"zero__stage": 3}, 4 * (BILLION + 25_000_000)),
            ({"zero__stage": 3, "precision__dtype": Precision.fp16}, 6 * (BILLION + 25_000_000)),
            ({"zero__stage": 3, "zero__sub_group_size": 10**12}, 4 * 10 * BILLION // 8),
            ({"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu}, 0),
        ],
    )
    def test_the_step_converts_what_it_updates(self, changes, expected):
        assert optimizer_step_bytes(settings_of(**changes), SHAPE, data_parallel_size=8) == expected

    @pytest.mark.parametrize(("optimizer", "bytes_each"), [("AdamW", 0), ("SGD", 4), ("Muon", 8)])
    def test_what_is_no_kernel_has_temporaries(self, optimizer, bytes_each):
        on_cpu = settings_of(zero__stage=2, cluster=cpu_cluster(), optimizer__type=OptimizerType[optimizer])
        assert optimizer_step_bytes(on_cpu, SHAPE, data_parallel_size=8) == bytes_each * 10 * BILLION // 8


class TestHost:
    @pytest.mark.parametrize(("gib", "rounded"), [(2.25, 4), (6, 8), (10, 16), (12, 16), (20.4, 32), (80, 128), (64, 64)])
    def test_pinned_blocks_round_up_to_powers_of_two(self, gib, rounded):
        assert pinned_bytes(int(gib * GIB)) == rounded * GIB
        assert pinned_bytes(np.array([int(gib * GIB), 0])).tolist() == [rounded * GIB, 0]

    def test_nothing_is_on_the_host_without_offload(self):
        for changes in ({"zero__stage": 0}, {}, {"zero__stage": 2}, {"zero__stage": 3}):
            assert host_states(settings_of(**changes), SHAPE, data_parallel_size=8, accumulates=True).total == 0

    def test_stage_2_offload_without_pinning(self):
        settings = settings_of(
            zero__stage=2,
            precision__dtype=Precision.fp16,
            offload__optimizer_device=OffloadDevice.cpu,
            offload__pin_memory=False,
        )
        states = host_states(settings, SHAPE, data_parallel_size=8, accumulates=False)
        shard = 10 * BILLION // 8
        assert states.optimizer_states == 12 * shard
        assert states.gradients == 4 * shard + 2 * 200_000_000
        assert states.parameters == 2 * shard
        accumulating = host_states(settings, SHAPE, data_parallel_size=8, accumulates=True)
        assert accumulating.gradients - states.gradients == 2 * shard

    def test_a_partial_offload_leaves_whole_sub_groups_on_the_device(self):
        offload = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu, "zero__sub_group_size": 125_000_000}

        def split(ratio, **changes):
            settings = settings_of(**(offload | changes), offload__optimizer_ratio=ratio)
            host = host_states(settings, SHAPE, data_parallel_size=8, accumulates=True)
            device = device_states(settings, num_parameters=10 * BILLION, data_parallel_size=8)
            step = optimizer_step_bytes(settings, SHAPE, data_parallel_size=8)
            return device.optimizer_states / (12 * BILLION), host.optimizer_states / (12 * BILLION), step

        assert split(1.0) == (0, 1.25, 0)
        # Ten sub-groups of weights and one of norms and biases: six of the eleven stay.
        assert split(0.4) == (0.75, 0.5, 12 * 125_000_000)
        assert split(0.4, zero__sub_group_size=10**12) == (1.25, 0, 12 * 1_250_000_000)
        assert split(0.95) == (0, 1.25, 0)

    def test_frozen_parameters_take_no_gradients_and_no_optimizer_states(self):
        half = SHAPE._replace(trainable_parameters=SHAPE.parameters // 2)
        settings = settings_of(
            zero__stage=3, offload__optimizer_device=OffloadDevice.cpu, offload__param_device=OffloadDevice.cpu
        )
        whole, some = (host_states(settings, shape, data_parallel_size=8, accumulates=True) for shape in (SHAPE, half))
        assert some.parameters == whole.parameters
        assert 2 * some.optimizer_states == whole.optimizer_states
        assert some.gradients < whole.gradients
        on_device = device_states(settings_of(), num_parameters=10**9, num_trainable=10**8, data_parallel_size=1)
        assert (on_device.parameters, on_device.gradients, on_device.optimizer_states) == (2 * 10**9, 4 * 10**8, 12 * 10**8)

    def test_pinning_costs_up_to_twice(self):
        offload = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu, "offload__param_device": OffloadDevice.cpu}
        pinned = host_states(settings_of(**offload), SHAPE, data_parallel_size=8, accumulates=True)
        pageable = host_states(settings_of(**offload, offload__pin_memory=False), SHAPE, data_parallel_size=8, accumulates=True)
        assert pageable.parameters < pinned.parameters < 2 * pageable.parameters
        assert pageable.optimizer_states == pinned.optimizer_states
        assert pageable.gradients == (4 + 4) * 10 * BILLION // 8

    def test_moments_appear_in_the_first_step(self):
        settings = settings_of(zero__stage=2, offload__optimizer_device=OffloadDevice.cpu)
        first = host_states(settings, SHAPE, data_parallel_size=8, accumulates=True, with_moments=False)
        later = host_states(settings, SHAPE, data_parallel_size=8, accumulates=True)
        assert later.total - first.total == 8 * 10 * BILLION // 8

    def test_nvme_keeps_buffers_instead_of_states(self):
        settings = settings_of(
            zero__stage=3,
            offload__optimizer_device=OffloadDevice.nvme,
            offload__param_device=OffloadDevice.nvme,
            offload__pin_memory=False,
        )
        states = host_states(settings, SHAPE, data_parallel_size=8, accumulates=True)
        assert states.optimizer_states == 0
        assert states.parameters == 2 * BILLION
        group = BILLION + 25_000_000
        swapped_parameters = 5 * 100_000_000 * 2 + group * 8 * 2
        assert states.swap_buffers == 4 * group * 4 + swapped_parameters

    def test_a_checkpoint_passes_through_ram(self):
        shard = 10 * BILLION // 8
        settings = settings_of()
        assert save_copy_bytes(settings, SHAPE, data_parallel_size=8, writes_model=False) == 4 * shard
        assert save_copy_bytes(settings, SHAPE, data_parallel_size=8, writes_model=True) == 2 * 10 * BILLION
        sharded = settings_of(zero__stage=3)
        assert save_copy_bytes(sharded, SHAPE, data_parallel_size=8, writes_model=True) == 4 * shard


class TestNvme:
    def test_optimizer_states_gradient_and_the_rest_of_the_parameters(self):
        shard = 10 * BILLION // 8
        optimizer = settings_of(zero__stage=3, offload__optimizer_device=OffloadDevice.nvme)
        assert nvme_bytes(optimizer, num_parameters=10 * BILLION, data_parallel_size=8) == 16 * shard
        parameters = settings_of(zero__stage=3, offload__param_device=OffloadDevice.nvme)
        assert nvme_bytes(parameters, num_parameters=10 * BILLION, data_parallel_size=8) == 2 * (shard - BILLION)
        assert nvme_bytes(parameters, num_parameters=BILLION, data_parallel_size=8) == 0


KERNELS = {
    "buckets": lambda settings, shape, _: reduce_bucket_bytes(settings, shape),
    "reduction copies": lambda settings, shape, _: reduction_copy_bytes(settings, shape),
    "gradient copies": lambda settings, shape, dp: gradient_copy_bytes(
        settings, shape, data_parallel_size=dp, accumulates=True
    ),
    "gathered parameters": lambda settings, shape, dp: gathered_parameter_bytes(settings, shape, data_parallel_size=dp),
    "step": lambda settings, shape, dp: optimizer_step_bytes(settings, shape, data_parallel_size=dp),
    "host": lambda settings, shape, dp: host_states(settings, shape, data_parallel_size=dp, accumulates=True).total,
    "start": lambda settings, shape, dp: initialization_copy_bytes(settings, shape, data_parallel_size=dp),
    "save": lambda settings, shape, dp: save_copy_bytes(settings, shape, data_parallel_size=dp, writes_model=True),
    "nvme": lambda settings, shape, dp: nvme_bytes(settings, num_parameters=shape.parameters, data_parallel_size=dp),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_arrays_give_what_numbers_give(kernel, variant):
    settings, function = settings_of(**VARIANTS[variant]), KERNELS[kernel]
    parameters, replicas = np.array([900_001, 7 * BILLION, 175 * BILLION])[:, None], np.array([1, 2, 64])
    shape = shape_of(parameters, parameters // 50, parameters // 1000)
    result = np.broadcast_to(function(settings, shape, replicas), (3, 3))
    for row, column in np.ndindex(3, 3):
        count = int(parameters[row, 0])
        one = shape_of(count, count // 50, count // 1000)
        assert result[row, column] == function(settings, one, int(replicas[column]))
