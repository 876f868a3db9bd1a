"""Bytes a parameter, against engines of the installed DeepSpeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.deepspeed_config.settings import OptimizerWrapper, resolve_settings
from orchestrator.planning.memory.host import host_states
from orchestrator.planning.memory.shape import RankShape
from orchestrator.planning.memory.states import device_states, step_gradient_bytes, whole_gradient_bytes
from orchestrator.units import DTYPE_BYTES
from tests.unit.planning.configurations import cpu_cluster, run_config

COUNTER = Path(__file__).with_name("count_engine_bytes.py")
RANKS, LAYERS, LAYER_PARAMETERS = 4, 16, 256 * 256
PARAMETERS = LAYERS * LAYER_PARAMETERS
SHAPE = RankShape(
    parameters=PARAMETERS,
    trainable_parameters=PARAMETERS,
    largest_parameter=LAYER_PARAMETERS,
    persistent_parameters=0,
)

CASES = {
    "fp32 without ZeRO": (0, "fp32", "fp32", False),
    "bf16 without ZeRO": (0, "bf16", "bf16", False),
    "BF16_Optimizer": (1, "bf16", "fp32", False),
    "fp32 ZeRO-1": (1, "fp32", "fp32", False),
    "bf16 ZeRO-1 in bf16": (1, "bf16", "bf16", False),
    "bf16 ZeRO-2 in fp32": (2, "bf16", "fp32", False),
    "bf16 ZeRO-2 in bf16": (2, "bf16", "bf16", False),
    "bf16 ZeRO-3 in fp32": (3, "bf16", "fp32", False),
    "fp32 ZeRO-3": (3, "fp32", "fp32", False),
    "bf16 ZeRO-2 in fp32, offloaded": (2, "bf16", "fp32", True),
    "bf16 ZeRO-2 in bf16, offloaded": (2, "bf16", "bf16", True),
    "bf16 ZeRO-3 in fp32, offloaded": (3, "bf16", "fp32", True),
}
KEEPS_GRADIENTS = {"BF16_Optimizer", "bf16 ZeRO-3 in fp32", "fp32 ZeRO-3"}
"""Engines whose gradient buffer outlives the step."""


def settings_of(name):
    stage, dtype, accumulation, offload = CASES[name]
    return resolve_settings(
        run_config(
            zero__stage=stage,
            precision__dtype=Precision(dtype),
            precision__grad_accum_dtype=Precision(accumulation),
            offload__optimizer_device=OffloadDevice.cpu if offload else OffloadDevice.none,
            cluster=cpu_cluster(),
        )
    )


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    keys = ("zero_stage", "dtype", "grad_accum_dtype", "offload")
    cases = json.dumps([dict(zip(keys, case, strict=True)) for case in CASES.values()])
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_SIZE"}
    ended = subprocess.run(
        [sys.executable, str(COUNTER), cases],
        capture_output=True,
        text=True,
        timeout=400,
        env=environment,
        cwd=tmp_path_factory.mktemp("engines"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("COUNTED ")]
    return dict(zip(CASES, json.loads(line.removeprefix("COUNTED ")), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_states_after_a_step(counted, name):
    settings = settings_of(name)
    states = device_states(settings, num_parameters=PARAMETERS, data_parallel_size=RANKS)
    expected = states.parameters + states.optimizer_states
    if name in KEEPS_GRADIENTS:
        expected += states.gradients
    if settings.optimizer_wrapper is OptimizerWrapper.zero12:
        last_reduced = LAYER_PARAMETERS * DTYPE_BYTES[settings.dtype]
        expected += last_reduced
    if settings.offloads_optimizer:
        in_ram = host_states(settings, SHAPE, data_parallel_size=RANKS, accumulates=True)
        staging = 0 if settings.zero_stage == 3 else LAYER_PARAMETERS * 2
        expected += in_ram.total + staging
    assert counted[name]["step"] == pytest.approx(expected / PARAMETERS, abs=0.01)


@pytest.mark.parametrize(
    "name", ["fp32 without ZeRO", "bf16 without ZeRO", "BF16_Optimizer", "bf16 ZeRO-3 in fp32", "fp32 ZeRO-3"]
)
def test_states_with_the_gradients_of_a_step(counted, name):
    settings = settings_of(name)
    states = device_states(settings, num_parameters=PARAMETERS, data_parallel_size=RANKS)
    gradients = whole_gradient_bytes(settings, num_parameters=PARAMETERS, data_parallel_size=RANKS)
    expected = states._replace(gradients=gradients).total / PARAMETERS
    assert counted[name]["backward"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("name", ["fp32 ZeRO-1", "bf16 ZeRO-1 in bf16", "bf16 ZeRO-2 in fp32", "bf16 ZeRO-2 in bf16"])
def test_zero_keeps_its_shard_of_the_gradients_for_the_step(counted, name):
    """Beyond it at most the gradients of the parameters that the shard touches, once more."""
    settings = settings_of(name)
    states = device_states(settings, num_parameters=PARAMETERS, data_parallel_size=RANKS)
    shard = step_gradient_bytes(settings, num_parameters=PARAMETERS, data_parallel_size=RANKS)
    least = (states.parameters + states.optimizer_states + shard) / PARAMETERS
    assert least - 0.01 <= counted[name]["backward"] <= least + shard / PARAMETERS + 0.01
