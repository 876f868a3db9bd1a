"""Model states: the published arithmetic, and the regimes of DeepSpeed's optimizers."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from orchestrator.config.enums import OffloadDevice, OptimizerType, Precision
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.memory.states import (
    device_states,
    model_state_bytes,
    moment_bytes,
    rank_states,
    resident_gradient_bytes,
    step_gradient_bytes,
    whole_gradient_bytes,
)
from orchestrator.units import GB, GIB
from tests.unit.planning.configurations import run_config

BILLIONS_70 = 70e9


def states_70b(**arguments):
    return model_state_bytes(BILLIONS_70, **({"zero_stage": 0, "grad_dtype_bytes": 2} | arguments))


def gigabytes(size):
    return pytest.approx(size * GB, abs=0.05 * GB)


class TestTheChapter:
    """70 billion parameters with 16-bit gradients, decimal gigabytes."""

    def test_one_device(self):
        states = states_70b()
        assert (states.parameters, states.gradients, states.optimizer_states) == (140 * GB, 140 * GB, 840 * GB)
        assert states.total == 1120 * GB

    def test_fourteen_devices_of_80_gb_at_least(self):
        assert ceil(states_70b().total / (80 * GB)) == 14

    @pytest.mark.parametrize(("stage", "total"), [(1, 293.1), (2, 155.3), (3, 17.5)])
    def test_zero_over_64(self, stage, total):
        assert states_70b(zero_stage=stage, data_parallel_size=64).total == gigabytes(total)

    def test_data_parallelism_alone_saves_nothing(self):
        assert states_70b(data_parallel_size=8).total == 1120 * GB

    def test_pipeline(self):
        assert states_70b(pipeline_parallel_size=4).total == 280 * GB

    def test_pipeline_and_tensor(self):
        assert states_70b(pipeline_parallel_size=4, tensor_parallel_size=8).total == 35 * GB


@pytest.mark.parametrize(
    ("num_parameters", "arguments", "gib", "tolerance"),
    [
        # 13B on 8 devices, ZeRO-2, steady state.
        (13.015e9, {"zero_stage": 2, "data_parallel_size": 8}, 45.46, 0.01),
        # 6.86B on 4 devices, ZeRO-3, after a step; small parameters stay whole.
        (6.86e9, {"zero_stage": 3, "data_parallel_size": 4}, 25.74, 0.01),
        # 13B on 8 devices, ZeRO-3.
        (13.015e9, {"zero_stage": 3, "data_parallel_size": 8}, 25.3, 0.05),
    ],
)
def test_published_measurements(num_parameters, arguments, gib, tolerance):
    assert model_state_bytes(num_parameters, **arguments).total == pytest.approx(gib * GIB, rel=tolerance)


@pytest.mark.parametrize(
    ("changes", "bytes_a_parameter"),
    [
        ({"zero__stage": 0, "precision__dtype": Precision.fp32}, 16),
        ({"zero__stage": 0}, 16),
        ({"zero__stage": 1}, 2 + 4 + 12 / 8),
        ({"zero__stage": 1, "precision__grad_accum_dtype": Precision.bf16}, 4 + 12 / 8),
        ({"zero__stage": 1, "precision__dtype": Precision.fp32}, 8 + 12 / 8),
        ({"zero__stage": 2}, 2 + 16 / 8),
        ({"zero__stage": 2, "precision__dtype": Precision.fp16}, 2 + 14 / 8),
        ({"zero__stage": 3}, 18 / 8),
        ({"zero__stage": 3, "precision__grad_accum_dtype": Precision.bf16}, 16 / 8),
        ({"zero__stage": 3, "precision__dtype": Precision.fp32}, 20 / 8),
        ({"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu}, 2 + 4 / 8),
        ({"zero__stage": 2, "precision__dtype": Precision.fp16, "offload__optimizer_device": OffloadDevice.cpu}, 2),
        ({"zero__stage": 1, "precision__dtype": Precision.fp16, "offload__optimizer_device": OffloadDevice.cpu}, 4),
        ({"zero__stage": 3, "offload__optimizer_device": OffloadDevice.nvme}, 2 / 8),
        (
            {
                "zero__stage": 3,
                "offload__optimizer_device": OffloadDevice.cpu,
                "offload__param_device": OffloadDevice.cpu,
            },
            0,
        ),
    ],
)
def test_bytes_a_parameter_on_the_device(changes, bytes_a_parameter):
    states = device_states(resolve_settings(run_config(**changes)), num_parameters=8_000_000, data_parallel_size=8)
    assert states.total == bytes_a_parameter * 8_000_000


@pytest.mark.parametrize(
    ("optimizer", "changes", "bytes_an_element"),
    [
        (OptimizerType.AdamW, {}, 8),
        (OptimizerType.Adam, {}, 8),
        (OptimizerType.Lion, {}, 4),
        (OptimizerType.Lion, {"offload__optimizer_device": OffloadDevice.cpu}, 8),
        (OptimizerType.SGD, {}, 4),
        (OptimizerType.SGD, {"optimizer__momentum": 0.0}, 0),
        (OptimizerType.Adagrad, {"offload__optimizer_device": OffloadDevice.cpu}, 4),
    ],
)
def test_what_each_optimizer_remembers(optimizer, changes, bytes_an_element):
    settings = resolve_settings(run_config(optimizer__type=optimizer, **changes))
    assert moment_bytes(settings, elements=1000) == 1000 * bytes_an_element
    shard = rank_states(settings, num_parameters=8_000, data_parallel_size=8)
    assert shard.optimizer_states == 1000 * (4 + bytes_an_element)


@pytest.mark.parametrize(
    ("changes", "bytes_of_a_matrix"),
    [
        ({"zero__stage": 0}, 4),
        ({"zero__stage": 1}, 4),
        ({"zero__stage": 1, "precision__grad_accum_dtype": Precision.bf16}, 2 * 2),
        ({"zero__stage": 1, "precision__dtype": Precision.fp32}, 2 * 4),
        ({"zero__stage": 2}, 2 * 2),
        ({"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu}, 4),
        ({"zero__stage": 3}, 2),
        ({"zero__stage": 3, "precision__dtype": Precision.fp32}, 4),
    ],
)
def test_muon_remembers_less_of_matrices_than_of_the_rest(changes, bytes_of_a_matrix):
    settings = resolve_settings(run_config(optimizer__type=OptimizerType.Muon, **changes))
    assert moment_bytes(settings, elements=1000, num_muon=900) == 100 * 8 + 900 * bytes_of_a_matrix
    counts = moment_bytes(settings, elements=np.array([1000, 2000]), num_muon=np.array([900, 900]))
    assert list(counts) == [100 * 8 + 900 * bytes_of_a_matrix, 1100 * 8 + 900 * bytes_of_a_matrix]


def gradient_bytes(function, changes, **arguments):
    settings = resolve_settings(run_config(**changes))
    return function(settings, num_parameters=8_000_000, data_parallel_size=8, **arguments) / 8_000_000


@pytest.mark.parametrize(
    ("changes", "accumulating", "first", "whole", "in_step"),
    [
        ({"zero__stage": 0}, 2, 0, 2, 2),
        ({"zero__stage": 1}, 6, 4, 6, 6),
        ({"zero__stage": 1, "precision__dtype": Precision.fp16}, 2, 0, 2, 2 / 8),
        ({"zero__stage": 2}, 4 / 8, 4 / 8, 4 / 8, 4 / 8),
        ({"zero__stage": 3}, 4 / 8, 4 / 8, 4 / 8, 4 / 8),
    ],
)
def test_gradients_over_a_step(changes, accumulating, first, whole, in_step):
    assert gradient_bytes(resident_gradient_bytes, changes, accumulates=True) == accumulating
    assert gradient_bytes(resident_gradient_bytes, changes, accumulates=False) == first
    assert gradient_bytes(whole_gradient_bytes, changes) == whole
    assert gradient_bytes(step_gradient_bytes, changes) == in_step


def test_arrays_give_what_numbers_give():
    stages, sizes = np.arange(4)[:, None, None], np.array([1, 7, 64])[None, :, None]
    counts = np.array([1_000_003, 70_000_000_001])[None, None, :]
    arrays = model_state_bytes(counts, zero_stage=stages, data_parallel_size=sizes, tensor_parallel_size=2)
    for index in np.ndindex(4, 3, 2):
        one = model_state_bytes(
            int(counts[0, 0, index[2]]),
            zero_stage=index[0],
            data_parallel_size=int(sizes[0, index[1], 0]),
            tensor_parallel_size=2,
        )
        for name in ("parameters", "gradients", "optimizer_states"):
            assert np.broadcast_to(getattr(arrays, name), (4, 3, 2))[index] == getattr(one, name)
