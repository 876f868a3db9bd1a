"""The compiled DeepSpeed configuration."""

from __future__ import annotations

import json

import pytest

from orchestrator.config.enums import OffloadDevice, PipelineSchedule, Precision, RecomputePolicy
from orchestrator.deepspeed_config.compile import compile_config
from orchestrator.deepspeed_config.settings import resolve_settings
from tests.unit.deepspeed_config.golden import CASES, FOLDER, as_text, compiled
from tests.unit.planning.configurations import cpu_cluster, run_config


def compile_small(*, nvme_directory=None, **changes):
    config = run_config(**changes)
    return compile_config(
        config,
        resolve_settings(config),
        train_batch_size=64,
        train_micro_batch_size_per_gpu=2,
        gradient_accumulation_steps=4,
        nvme_directory=nvme_directory,
    )


@pytest.mark.parametrize("name", CASES)
def test_is_unchanged(name):
    assert as_text(compiled(name)) == (FOLDER / f"{name}.json").read_text()


def test_every_golden_file_has_a_case():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_is_plain_json_without_open_values(name):
    text = json.dumps(compiled(name))
    assert '"auto"' not in text
    assert "null" not in text
    assert json.loads(text) == compiled(name)


@pytest.mark.parametrize("name", CASES)
def test_says_what_deepspeed_would_choose_otherwise(name):
    config = compiled(name)
    assert {"gradient_clipping", "communication_data_type", "data_types"} <= set(config)
    assert config["zero_optimization"]["stage"] == 0 or "overlap_comm" in config["zero_optimization"]
    assert not {"scheduler", "tensorboard", "wandb", "csv_monitor"} & set(config)


def test_keys_of_other_stages_and_formats_are_absent():
    assert set(compile_small(zero__stage=0)["zero_optimization"]) == {"stage"}
    second = compile_small(zero__stage=2)
    assert not [key for key in second["zero_optimization"] if key.startswith("stage3_") or key == "sub_group_size"]
    third = compile_small(zero__stage=3)["zero_optimization"]
    assert "allgather_bucket_size" not in third
    assert "round_robin_gradients" not in third
    assert "fp16" not in second
    assert "bf16" not in compile_small(precision__dtype=Precision.fp16)
    assert not {"bf16", "fp16"} & set(compile_small(precision__dtype=Precision.fp32))


def test_the_optimizer_is_one_the_accelerator_has():
    def asks_for_torch(**changes):
        return compile_small(**changes)["optimizer"]["params"].get("torch_adam", False)

    assert asks_for_torch(cluster=cpu_cluster())
    assert not asks_for_torch()
    assert not asks_for_torch(cluster=cpu_cluster(), offload__optimizer_device=OffloadDevice.cpu)


@pytest.mark.parametrize(
    ("tensor_parallel_size", "sequence_parallel", "schedule", "partitioned"),
    [
        (1, False, PipelineSchedule.one_f_one_b, False),
        (2, False, PipelineSchedule.one_f_one_b, True),
        (2, False, PipelineSchedule.gpipe, True),
        (2, True, PipelineSchedule.one_f_one_b, False),
        (2, False, PipelineSchedule.dual_pipe_v, False),
    ],
)
def test_only_what_is_whole_on_every_rank_is_cut_between_stages(tensor_parallel_size, sequence_parallel, schedule, partitioned):
    pipeline = compile_small(
        parallelism__pipeline_parallel_size=2,
        parallelism__tensor_parallel_size=tensor_parallel_size,
        parallelism__sequence_parallel=sequence_parallel,
        parallelism__schedule=schedule,
    )["pipeline"]
    assert pipeline["pipe_partitioned"] is pipeline["grad_partitioned"] is partitioned


@pytest.mark.parametrize("policy", RecomputePolicy)
def test_deepspeed_never_recomputes(policy):
    compiled = compile_small(parallelism__pipeline_parallel_size=2, activation_checkpointing__policy=policy)
    assert compiled["pipeline"]["activation_checkpoint_interval"] == 0
    assert "activation_checkpointing" not in compiled


def test_the_run_has_a_directory_of_its_own_on_the_disk():
    nvme = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.nvme, "offload__nvme_path": "/disk"}
    block = compile_small(**nvme, nvme_directory="/disk/run_3")["zero_optimization"]["offload_optimizer"]
    assert block["nvme_path"] == "/disk/run_3"


def test_a_partial_offload_is_written_at_stage_3_only():
    offload = {"offload__optimizer_device": OffloadDevice.cpu}
    third = compile_small(zero__stage=3, **offload, offload__optimizer_ratio=0.4)["zero_optimization"]
    assert third["offload_optimizer"]["ratio"] == 0.4
    assert "ratio" not in compile_small(zero__stage=2, **offload)["zero_optimization"]["offload_optimizer"]


def test_nvme_offload_names_the_disk_and_its_buffers():
    config = compile_small(
        zero__stage=3,
        offload__optimizer_device=OffloadDevice.nvme,
        offload__param_device=OffloadDevice.nvme,
        offload__nvme_path="/disk",
        offload__param_buffer_size=7_000_000,
    )
    zero = config["zero_optimization"]
    assert zero["offload_optimizer"]["nvme_path"] == zero["offload_param"]["nvme_path"] == "/disk"
    assert zero["offload_param"]["buffer_size"] == 7_000_000
    assert "aio" in config
    assert "aio" not in compile_small(zero__stage=3, offload__optimizer_device=OffloadDevice.cpu)
