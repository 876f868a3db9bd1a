"""What is known of the field's big runs: published step times and the choices that were right."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from orchestrator.config.enums import AttentionImplementation, Family, OffloadDevice, Precision, RecomputePolicy
from orchestrator.config.schema import ModelConfig
from orchestrator.planning.cost.many import step_seconds_many
from orchestrator.planning.memory.many import Layouts, estimate_many
from tests.unit.planning.configurations import LLAMA_2_70B
from tests.unit.planning.cost.steps import GPT3, LLAMA_2_7B, estimated, gpu_run, time_of

FULL = RecomputePolicy.full
BATCH = 1536
THREE_D = {"parallelism__tensor_parallel_size": 8, "training__train_micro_batch_size_per_gpu": 1, "zero__stage": 0}


def gpt3_run(devices: int, **changes: Any) -> Any:
    """GPT-3 175B on A100 as in Narayanan et al. 2021, table 2."""
    values = {
        "cluster__hosts": devices // 8,
        "precision__dtype": Precision.fp16,
        "data__sequence_length": 2048,
        "activation_checkpointing__policy": FULL,
        "training__train_batch_size": BATCH,
        "training__gradient_accumulation_steps": None,
    }
    return gpu_run(model=GPT3, **(values | changes))


def three_d(devices: int) -> float:
    return time_of(gpt3_run(devices, **THREE_D, parallelism__pipeline_parallel_size=12)).step_seconds


def zero_3(devices: int) -> float:
    micro_batch = BATCH // devices
    return time_of(gpt3_run(devices, training__train_micro_batch_size_per_gpu=micro_batch, zero__stage=3)).step_seconds


class TestGpt3OnA100:
    def test_at_384_devices_both_ways_are_about_as_fast(self):
        assert 1 < zero_3(384) / three_d(384) < 1.1

    def test_at_768_three_dimensions_win(self):
        assert zero_3(768) / three_d(768) == pytest.approx(149 / 88, rel=0.15)

    def test_at_1536_they_are_more_than_two_and_a_half_times_faster(self):
        assert zero_3(1536) / three_d(1536) == pytest.approx(141 / 44, rel=0.15)

    @pytest.mark.parametrize(("devices", "tflops"), [(384, 153), (768, 149), (1536, 141)])
    def test_three_dimensions_take_what_was_measured(self, devices, tflops):
        """The paper counts 8 operations for each parameter and token."""
        measured = 8 * 174.6e9 * BATCH * 2048 / (devices * tflops * 1e12)
        assert three_d(devices) == pytest.approx(measured, rel=0.1)

    def test_on_1024_the_best_that_fits_is_tensor_parallel_in_a_host_times_pipeline_times_data(self):
        estimator, _ = estimated(gpt3_run(1024, precision__dtype=Precision.bf16, **THREE_D))
        layouts = layouts_of(1024)
        seconds, memory = step_seconds_many(estimator, layouts), estimate_many(estimator, layouts)
        fits = (memory > 0) & (memory < 0.95 * estimator.cluster.device_memory_bytes)
        best = int(np.argmin(np.where(fits, seconds, np.inf)))
        assert 2 <= layouts.tensor_parallel_size[best] <= 8
        assert layouts.pipeline_parallel_size[best] > 1
        assert layouts.data_parallel_size[best] > 1


def layouts_of(devices: int) -> Layouts:
    """Every split of the devices, micro-batches up to 8, all recomputation policies; ZeRO beyond 1 without stages alone."""
    rows = [
        (tensor, stages, devices // (tensor * stages), micro, stage, policy)
        for tensor, stages, micro, stage in product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8), range(4))
        for policy in (RecomputePolicy.none, RecomputePolicy.selective, FULL)
        if devices % (tensor * stages) == 0 and BATCH % (devices // (tensor * stages) * micro) == 0
        if stages == 1 or stage <= 1
    ]
    tensor, stages, data, micro, stage, policy = (np.array(column) for column in zip(*rows, strict=True))
    return Layouts(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        data_parallel_size=data,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=BATCH // (data * micro),
        zero_stage=stage,
        recompute=policy,
    )


BLOOM_STEPS = {
    (8, 12, 4, 1): 143.31,
    (8, 12, 4, 2): 134.02,
    (8, 12, 4, 4): 123.69,
    (8, 12, 4, 8): 129.26,
    (8, 6, 8, 2): 131.02,
    (8, 6, 8, 4): 113.95,
    (4, 12, 8, 2): 110.48,
    (2, 24, 8, 1): 119.53,
    (2, 24, 8, 2): 122.75,
    (4, 24, 4, 1): 130.6,
}
"""Tensor, pipeline and data-parallel size and micro-batch -> seconds: 72 layers x 14336 on 384 A100, batch 2048 (BigScience's
log of the BLOOM runs, February 2022)."""


def bloom_seconds(tensor: int, stages: int, data: int, micro_batch: int) -> float:
    model = ModelConfig(
        name="bloom",
        family=Family.gpt2,
        vocab_size=250880,
        hidden_size=14336,
        num_hidden_layers=72,
        num_attention_heads=64,
        max_position_embeddings=2048,
        attention_implementation=AttentionImplementation.eager,
    )
    run = gpu_run(
        model=model,
        cluster__hosts=48,
        cluster__network_gbps=50,
        precision__dtype=Precision.fp16,
        data__sequence_length=2048,
        activation_checkpointing__policy=FULL,
        parallelism__tensor_parallel_size=tensor,
        parallelism__pipeline_parallel_size=stages,
        parallelism__data_parallel_size=data,
        training__train_batch_size=2048,
        training__train_micro_batch_size_per_gpu=micro_batch,
        training__gradient_accumulation_steps=None,
    )
    return time_of(run).step_seconds


class TestBloom:
    def test_the_layout_that_was_trained_is_among_the_first_three(self):
        order = sorted(BLOOM_STEPS, key=lambda layout: bloom_seconds(*layout))
        assert (4, 12, 8, 2) in order[:3]

    def test_steps_take_about_what_was_measured(self):
        errors = [abs(bloom_seconds(*layout) / measured - 1) for layout, measured in BLOOM_STEPS.items()]
        assert np.mean(errors) < 0.2

    def test_heads_that_the_matrix_units_cannot_take_are_slow(self):
        """78 layers x 13824: 96 heads of 144 took 107 s, 128 heads of 108 took 147."""
        seconds = {}
        for heads in (96, 128):
            model = ModelConfig(
                name="bloom",
                family=Family.gpt2,
                vocab_size=250880,
                hidden_size=13824,
                num_hidden_layers=78,
                num_attention_heads=heads,
                max_position_embeddings=2048,
                attention_implementation=AttentionImplementation.eager,
            )
            changes = {"parallelism__tensor_parallel_size": 4, "parallelism__pipeline_parallel_size": 12}
            run = gpu_run(
                model=model, cluster__hosts=48, precision__dtype=Precision.fp16, data__sequence_length=2048, **changes
            )
            seconds[heads] = time_of(run).step_seconds
        assert seconds[128] > 1.2 * seconds[96]


class TestOffload:
    def test_the_processors_update_llama_2_7b_in_about_four_seconds(self):
        """DeepSpeed's ZenFlow post: 4 A100, over 4 s on the processors' path, and the devices idle over 60 % of the step."""
        changes = {"cluster__devices_per_host": 4, "zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu}
        time = time_of(gpu_run(model=LLAMA_2_7B, training__gradient_accumulation_steps=1, **changes))
        path = sum(time.components[name].exposed_seconds for name in ("processor_optimizer", "offload_copies"))
        assert path == pytest.approx(4.2, rel=0.1)
        assert path > 0.6 * time.step_seconds

    def test_nvme_states_of_70b_on_one_host_take_minutes(self):
        """12 bytes a parameter each way over four Gen4 drives: 84 s to read, 168 s to write."""
        changes = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.nvme, "offload__nvme_path": "/nvme"}
        time = time_of(gpu_run(model=LLAMA_2_70B, **changes))
        assert time.components["nvme_reads"].exposed_seconds == pytest.approx(84, rel=0.03)
        assert time.components["nvme_writes"].exposed_seconds == pytest.approx(168, rel=0.03)
