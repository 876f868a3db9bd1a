"""The installed DeepSpeed accepts what is compiled, and makes of it what the settings say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.deepspeed_config.settings import OptimizerWrapper, resolve_settings
from tests.unit.deepspeed_config.golden import CASES, FOLDER, compiled, configuration

READER = Path(__file__).with_name("read_with_deepspeed.py")
TORCH_NAMES = {Precision.fp32: "torch.float32", Precision.bf16: "torch.bfloat16", Precision.fp16: "torch.float16"}
WRAPPERS = {
    OptimizerWrapper.plain: (None,),
    OptimizerWrapper.fp16: ("fp16", "ddp_bf16"),
    OptimizerWrapper.bf16: ("bf16",),
    OptimizerWrapper.zero12: ("zero_optimization",),
    OptimizerWrapper.zero3: ("zero_optimization",),
}


@pytest.fixture(scope="module")
def effective():
    files = [str(path) for path in sorted(FOLDER.glob("*.json"))]
    ended = subprocess.run([sys.executable, str(READER), *files], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("EFFECTIVE ")]
    return json.loads(line.removeprefix("EFFECTIVE "))


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_uses_the_settings(effective, name):
    settings, found = resolve_settings(configuration(name)), effective[name]
    assert found["zero_stage"] == settings.zero_stage
    assert found["wrapper"] in WRAPPERS[settings.optimizer_wrapper]
    assert found["dtype"] == TORCH_NAMES[settings.dtype]
    assert found["grad_accum_dtype"] == TORCH_NAMES[settings.grad_accum_dtype]
    assert found["communication_data_type"] == TORCH_NAMES[settings.communication_data_type]
    for field in ("gradient_clipping", "prescale_gradients", "gradient_predivide_factor"):
        assert found[field] == getattr(settings, field)
    if settings.zero_stage > 0:
        for field in ("reduce_bucket_size", "overlap_comm", "contiguous_gradients", "reduce_scatter"):
            assert found[field] == getattr(settings, field)
    if settings.zero_stage in (1, 2):
        assert found["allgather_bucket_size"] == settings.allgather_bucket_size
        assert found["round_robin_gradients"] == settings.round_robin_gradients
    if settings.zero_stage == 3:
        for field in [field for field in found if field.startswith("stage3_")] + ["sub_group_size"]:
            assert found[field] == getattr(settings, field)


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_uses_the_optimizer_and_the_loss_scale(effective, name):
    config, found = configuration(name), effective[name]
    optimizer, parameters = found["optimizer"]
    assert optimizer.lower() == config.optimizer.type.lower()
    assert parameters["lr"] == config.optimizer.lr
    assert parameters.get("betas", config.optimizer.betas) == config.optimizer.betas
    dynamic = config.precision.dtype is Precision.fp16 and config.precision.loss_scale == 0
    assert found["dynamic_loss_scale"] is dynamic


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_offloads_what_the_settings_say(effective, name):
    settings, found = resolve_settings(configuration(name)), effective[name]
    for block, device in (
        ("offload_optimizer", settings.offload_optimizer_device),
        ("offload_param", settings.offload_param_device),
    ):
        if device is OffloadDevice.none:
            assert found[block] is None
        else:
            assert found[block]["device"] == device.value
            assert found[block]["pin_memory"] == settings.pin_memory
            if block == "offload_optimizer":
                assert found[block]["ratio"] == settings.optimizer_ratio
            assert found[block]["nvme_path"] == (settings.nvme_path if device is OffloadDevice.nvme else None)
    if settings.offload_param_device is OffloadDevice.nvme:
        written = compiled(name)["zero_optimization"]["offload_param"]
        assert {field: found["offload_param"][field] for field in written} == written


@pytest.mark.parametrize("name", [name for name in CASES if "pipe" in name])
def test_deepspeed_reads_the_pipeline_block(effective, name):
    written = compiled(name)["pipeline"]
    assert written
    assert {key: effective[name]["pipeline"][key] for key in written} == written
