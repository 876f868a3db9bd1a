"""A DeepSpeed JSON becomes the run the planner speaks of: DeepSpeed's defaults, the user's words, the JSON's own keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.config.load import load_config
from orchestrator.config.options import all_options
from orchestrator.deepspeed_config.correct import complete
from orchestrator.deepspeed_config.ingest import JSON_PATHS, OWNED_SECTIONS, ingest, json_words
from orchestrator.deepspeed_config.keys.table import ROOT
from orchestrator.deepspeed_config.lint import LintContext, effective_values
from orchestrator.deepspeed_config.lint_batch import batch_of
from orchestrator.deepspeed_config.settings import OptimizerWrapper, resolve_settings
from orchestrator.planning.memory.states import device_states
from tests.unit.deepspeed_config.checked import run, says
from tests.unit.planning.configurations import run_config

READER = Path(__file__).with_name("read_with_deepspeed.py")
CONTEXT = LintContext(version=Version("0.19.8"), num_devices=8, devices_per_host=8)
ADAMW = {"type": "AdamW", "params": {"lr": 1e-4}}
FILES = {
    "silent": {"train_micro_batch_size_per_gpu": 1},
    "fp16 stage 0": {"train_batch_size": 16, "fp16": {"enabled": True}},
    "bf16 stage 0": {"train_batch_size": 16, "bf16": {"enabled": True}},
    "bf16 stage 1": {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}},
    "bf16 stage 1, fp32 sums": {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "float32"},
        "zero_optimization": {"stage": 1},
    },
    "bf16 stage 1 offloaded, fp32 sums": {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1, "cpu_offload": True},
    },
    "stage 2, own buckets": {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "fp16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 2e8,
            "allgather_bucket_size": "200000000",
            "overlap_comm": True,
        },
        "communication_data_type": "fp32",
    },
    "stage 3, old names": {
        "train_micro_batch_size_per_gpu": 1,
        "bfloat16": {"enabled": "true"},
        "zero_optimization": {
            "stage": "3",
            "prefetch_bucket_size": 1e7,
            "param_persistence_threshold": 1e4,
            "max_live_parameters": 5e8,
            "sub_group_size": 1e8,
            "cpu_offload": True,
            "cpu_offload_param": True,
        },
        "prescale_gradients": False,
        "gradient_clipping": 0.5,
    },
}
WRAPPERS = {
    OptimizerWrapper.plain: (None,),
    OptimizerWrapper.fp16: ("fp16", "ddp_bf16"),
    OptimizerWrapper.bf16: ("bf16",),
    OptimizerWrapper.zero12: ("zero_optimization",),
    OptimizerWrapper.zero3: ("zero_optimization",),
}
TORCH_NAMES = {Precision.fp32: "torch.float32", Precision.bf16: "torch.bfloat16", Precision.fp16: "torch.float16"}


@pytest.fixture(scope="module")
def base():
    return load_config(["cluster=dgx_h100", "model=llama_3_8b"])


def ingested(base, values):
    effective = effective_values(values, CONTEXT)
    return ingest(base, effective, batch_of(effective, CONTEXT))


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """What the installed DeepSpeed uses of each file, once corrected and completed."""
    folder = tmp_path_factory.mktemp("files")
    for name, values in FILES.items():
        effective = effective_values({**values, "optimizer": ADAMW}, CONTEXT)
        completed, _ = complete(effective.values, effective, batch_of(effective, CONTEXT))
        (folder / f"{name}.json").write_text(json.dumps(completed))
    files = [str(path) for path in sorted(folder.glob("*.json"))]
    ended = subprocess.run([sys.executable, str(READER), *files], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("EFFECTIVE ")]
    return json.loads(line.removeprefix("EFFECTIVE "))


@pytest.mark.parametrize("name", FILES)
def test_the_planner_has_the_settings_deepspeed_uses(base, used, name):
    settings, found = resolve_settings(ingested(base, FILES[name])), used[name]
    assert found["zero_stage"] == settings.zero_stage
    assert found["wrapper"] in WRAPPERS[settings.optimizer_wrapper]
    assert found["dtype"] == TORCH_NAMES[settings.dtype]
    assert found["grad_accum_dtype"] == TORCH_NAMES[settings.grad_accum_dtype]
    same = ["gradient_clipping", "prescale_gradients", "gradient_predivide_factor"]
    if settings.zero_stage > 0:
        same += ["reduce_bucket_size", "overlap_comm", "contiguous_gradients", "reduce_scatter", "allgather_bucket_size"]
    if settings.zero_stage == 3:
        same += [field for field in found if field.startswith("stage3_")] + ["sub_group_size"]
    assert {field: found[field] for field in same} == {field: getattr(settings, field) for field in same}
    for block, device in (
        ("offload_optimizer", settings.offload_optimizer_device),
        ("offload_param", settings.offload_param_device),
    ):
        assert (found[block] or {"device": "none"})["device"] == device.value
        assert device is OffloadDevice.none or found[block]["pin_memory"] is settings.pin_memory


def test_gradients_are_accumulated_as_deepspeed_does_and_not_as_we_would(base):
    config = ingested(base, FILES["bf16 stage 1"])
    assert resolve_settings(config).grad_accum_dtype is Precision.bf16
    assert resolve_settings(base).grad_accum_dtype is Precision.fp32


def test_tensor_parallelism_comes_from_the_file_or_the_words(base):
    assert ingested(base, {"train_micro_batch_size_per_gpu": 1}).parallelism.tensor_parallel_size == 1
    auto_tp = {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 4}}
    assert ingested(base, auto_tp).parallelism.tensor_parallel_size == 4


def test_every_option_a_file_states_has_its_key_in_the_file():
    """A planner's finding about any of them can be said in the JSON's terms."""
    not_in_a_file = {"precision.dtype", "communication.timeout_minutes"}
    batch = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"}
    in_a_file = {f"training.{name}" for name in batch}
    sections = tuple(f"{section}." for section in OWNED_SECTIONS if section != "lr_scheduler")
    options = {option.path for option in all_options() if option.path.startswith(sections)}
    of_our_training = {option for option in options if option.startswith("training.")} - in_a_file
    assert options - JSON_PATHS.keys() == not_in_a_file | of_our_training
    for path in JSON_PATHS.values():
        assert ROOT.find(path) is not None or path.startswith("optimizer.params."), path


@pytest.mark.parametrize(
    ("words", "in_json"),
    [
        (
            "set zero.stage=1, or offload.param_device=none",
            "set zero_optimization.stage=1, or zero_optimization.offload_param.device=none",
        ),
        ("set precision.dtype=bf16", "set bf16.enabled=true"),
        ("precision.dtype is bf16", "bf16.enabled is bf16"),
        ("set training.train_batch_size=8", "set train_batch_size=8"),
        ("set cluster.hosts=8 parallelism.tensor_parallel_size=2", "set cluster.hosts=8 parallelism.tensor_parallel_size=2"),
        ("zero_optimization.stage", "zero_optimization.stage"),
    ],
)
def test_advice_is_given_in_the_files_own_keys(words, in_json):
    assert json_words(words, effective_values({"bf16": {"enabled": True}}, CONTEXT)) == in_json


def test_what_is_assumed_is_said(tmp_path):
    values = {
        "train_micro_batch_size_per_gpu": 8,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "Lamb", "params": {"lr": 1e-4}},
    }
    found = run("validate", values, tmp_path, "world_size=8", "model=llama_3_8b")
    assumed = {finding["field"] for finding in found["findings"] if finding["rule"] == "json-assumption"}
    assert assumed == {"cluster", "activation_checkpointing", "data.sequence_length", "optimizer.type"}
    stated = run(
        "validate",
        values,
        tmp_path,
        "cluster=dgx_h100",
        "model=llama_3_8b",
        "activation_checkpointing=full",
        "data.sequence_length=512",
    )
    assumed = {finding["field"] for finding in stated["findings"] if finding["rule"] == "json-assumption"}
    assert assumed == {"optimizer.type"}
    assert stated["memory"]["device"][0]["allocated_bytes"] < found["memory"]["device"][0]["allocated_bytes"]


@pytest.mark.parametrize(("model", "told"), [("llama_3_405b", True), ("llama_3_70b", False)])
def test_copies_of_the_model_that_a_script_loads_are_held_against_a_hosts_ram(tmp_path, model, told):
    values = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    found = run("validate", values, tmp_path, "cluster=dgx_a100_80", "cluster.hosts=64", f"model={model}")["findings"]
    copies = [finding for finding in found if finding["rule"] == "json-host-copies"]
    assert [(finding["severity"], finding["field"]) for finding in copies] == [("warning", "cluster.host_memory_gib")] * told
    assert all("8 processes" in finding["message"] and "5.9" in finding["message"] for finding in copies)


def test_memory_is_that_of_the_same_run_said_in_words(tmp_path):
    from orchestrator.commands import validate

    values = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "optimizer": ADAMW,
    }
    words = ("cluster=dgx_h100", "model=llama_3_8b", "data.sequence_length=2048")
    found = run("validate", values, tmp_path, *words)
    same = load_config(
        [*words, "zero=stage3", "offload=optimizer_cpu", "training=default", "training.train_micro_batch_size_per_gpu=2"]
    )
    stated = validate.run(same).payload
    for part in ("memory", "layout", "partition"):
        assert found[part] == stated[part]


def test_memory_is_not_estimated_where_the_file_is_in_doubt(tmp_path):
    doubtful = {"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 3}}
    found = run("validate", doubtful, tmp_path, "world_size=8", "model=llama_3_8b")
    assert found["memory"] is None
    assert says(found, "info", "deepspeed_json") == ["json-no-estimate"]
    clear = {"train_micro_batch_size_per_gpu": 1, "wandb": {"name": "x"}}
    assert run("validate", clear, tmp_path, "world_size=8", "model=llama_3_8b")["memory"] is not None


@pytest.mark.parametrize("beyond", [{"sequence_parallel_size": 2}, {"expert_parallel": {"enabled": True}}])
def test_memory_of_what_is_not_modelled_is_not_invented(tmp_path, beyond):
    found = run("validate", {"train_micro_batch_size_per_gpu": 1, **beyond}, tmp_path, "world_size=8", "model=llama_3_8b")
    assert found["verdict"] == "feasible"
    assert found["memory"] is None


def test_tensor_parallelism_of_the_file_is_advised_on_in_its_own_key(tmp_path):
    values = {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 3}}
    found = run("validate", values, tmp_path, "world_size=8", "model=llama_3_8b")
    fields = [finding["field"] for finding in found["findings"] if finding["severity"] == "error"]
    assert "tensor_parallel.autotp_size" in fields
    assert not [field for field in fields if field.startswith("parallelism.")]


def test_what_the_lint_says_is_not_said_again(tmp_path):
    values = {"train_batch_size": 12, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}
    found = run("validate", values, tmp_path, "world_size=8", "model=llama_3_8b")
    errors = [finding["field"] for finding in found["findings"] if finding["severity"] == "error"]
    assert len(errors) == len(set(errors))
    assert found["layout"] is None


@pytest.mark.parametrize(
    ("block", "bytes_each"),
    [
        ({"type": "AdamW"}, 12),
        ({"type": "Lion"}, 8),
        ({"type": "SGD"}, 4),
        ({"type": "SGD", "params": {"momentum": 0.9}}, 8),
        ({"type": "Lamb"}, 12),
    ],
)
def test_the_states_of_the_optimizer_that_is_named_are_counted(block, bytes_each):
    values = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": block}
    effective = effective_values(values, CONTEXT)
    config = ingest(run_config(), effective, batch_of(effective, CONTEXT))
    states = device_states(resolve_settings(config), num_parameters=1000, data_parallel_size=1)
    assert states.optimizer_states == 1000 * bytes_each
