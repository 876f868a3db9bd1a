"""DeepSpeed's effective settings."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.deepspeed_config.settings import OptimizerWrapper, optimizer_wrapper, resolve_settings
from tests.unit.planning.configurations import cpu_cluster, run_config

FP32, BF16, FP16 = Precision.fp32, Precision.bf16, Precision.fp16
PLAIN, HALF, SHARDED = OptimizerWrapper.plain, OptimizerWrapper.fp16, OptimizerWrapper.bf16
ZERO12, ZERO3 = OptimizerWrapper.zero12, OptimizerWrapper.zero3


@pytest.mark.parametrize(
    ("stage", "dtype", "accumulation", "pipeline", "offload", "expected"),
    [
        (0, FP32, FP32, False, False, PLAIN),
        (0, FP32, FP32, True, False, PLAIN),
        (0, FP16, FP16, False, False, HALF),
        (0, FP16, FP16, True, False, HALF),
        (0, BF16, BF16, False, False, HALF),
        (0, BF16, BF16, True, False, SHARDED),
        (1, BF16, FP32, False, False, SHARDED),
        (1, BF16, FP32, True, False, SHARDED),
        (1, BF16, FP32, False, True, ZERO12),
        (1, BF16, BF16, False, False, ZERO12),
        (1, FP16, FP32, False, False, ZERO12),
        (1, FP32, FP32, False, False, ZERO12),
        (2, BF16, FP32, False, False, ZERO12),
        (3, BF16, FP32, False, False, ZERO3),
        (3, FP32, FP32, False, True, ZERO3),
    ],
)
def test_the_wrapper_is_the_one_deepspeed_picks(stage, dtype, accumulation, pipeline, offload, expected):
    assert (
        optimizer_wrapper(
            zero_stage=stage, dtype=dtype, grad_accum_dtype=accumulation, pipeline=pipeline, offloads_optimizer=offload
        )
        is expected
    )


@pytest.mark.parametrize(
    ("stage", "dtype", "expected"),
    [(0, BF16, BF16), (1, BF16, FP32), (2, BF16, FP32), (3, BF16, FP32), (1, FP16, FP16), (3, FP16, FP16), (2, FP32, FP32)],
)
def test_bf16_accumulates_in_fp32_from_stage_1(stage, dtype, expected):
    assert resolve_settings(run_config(zero__stage=stage, precision__dtype=dtype)).grad_accum_dtype is expected


def test_an_asked_format_of_accumulation_wins():
    assert resolve_settings(run_config(precision__grad_accum_dtype=BF16)).grad_accum_dtype is BF16


@pytest.mark.parametrize(
    ("stage", "asked", "stages", "expected"),
    [(2, None, 1, False), (3, None, 1, True), (2, True, 1, True), (3, False, 1, False), (1, True, 2, False)],
)
def test_overlap_has_deepspeeds_default(stage, asked, stages, expected):
    config = run_config(zero__stage=stage, zero__overlap_comm=asked, parallelism__pipeline_parallel_size=stages)
    assert resolve_settings(config).overlap_comm is expected


def test_a_cpu_never_pins():
    offloaded = {"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu}
    assert resolve_settings(run_config(**offloaded)).pins_memory
    assert not resolve_settings(run_config(**offloaded, cluster=cpu_cluster())).pins_memory
    assert not resolve_settings(run_config(**offloaded, offload__pin_memory=False)).pins_memory
