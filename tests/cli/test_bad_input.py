"""Bad input is refused with the field, the value and the fix, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator


@dataclass(frozen=True)
class Bad:
    """Words that must be refused, and for each problem the field, and what message and fix must say."""

    name: str
    words: tuple[str, ...]
    problems: tuple[tuple[str, str, str], ...]


CASES = [
    Bad(
        "three bad overrides",
        ("zero.stge=3", "training.max_steps=soon", "model=llama_9"),
        (
            ("zero.stge", "zero.stge", "zero.stage"),
            ("training.max_steps", "'soon'", "an integer"),
            ("model", "llama_9", "llama_3_8b"),
        ),
    ),
    Bad("unknown key", ("training.max_step=5",), (("training.max_step", "training.max_step", "training.max_steps"),)),
    Bad("wrong type", ("precision.dtype=bf15",), (("precision.dtype", "'bf15'", "bf16"),)),
    Bad(
        "ZeRO-3 with a pipeline",
        ("zero=stage3", "parallelism.pipeline_parallel_size=2"),
        (("zero.stage", "3", "zero.stage=1"),),
    ),
    Bad(
        "7 heads over tp 2",
        (
            "model.hidden_size=224",
            "model.num_attention_heads=7",
            "model.num_key_value_heads=7",
            "parallelism.tensor_parallel_size=2",
        ),
        (("model.num_attention_heads", "7", "tensor_parallel_size"),),
    ),
    Bad(
        "a batch triple that does not multiply",
        (
            "training.train_batch_size=16",
            "training.train_micro_batch_size_per_gpu=3",
            "training.gradient_accumulation_steps=2",
        ),
        (("training.train_batch_size", "16", "12"),),
    ),
    Bad(
        "NVMe without a path",
        ("zero=stage3", "offload=optimizer_nvme", "cluster.nvme_gib=1000"),
        (("offload.nvme_path", "nvme", "offload.nvme_path="),),
    ),
    Bad(
        "a missing hostfile",
        ("cluster.hostfile=no/such/hostfile",),
        (("cluster.hostfile", "no/such/hostfile", "cluster.hosts"),),
    ),
    Bad(
        "Llama-2-70B on one 80 GB GPU",
        ("model=llama_2_70b", "cluster=dgx_a100_80", "cluster.devices_per_host=1", "training=default"),
        (("cluster.device_memory_gib", "GiB", "cluster.hosts"),),
    ),
]


@pytest.mark.parametrize("verb", ["validate", "launch"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_refused_with_field_value_and_fix(case: Bad, verb: str, tmp_path: Path) -> None:
    ended = orchestrator(verb, *case.words, "output=json", cwd=tmp_path, watched=True)
    assert ended.code == 2, ended.everything
    assert "Traceback" not in ended.everything
    assert "STARTED A PROCESS" not in ended.stderr
    assert list(tmp_path.iterdir()) == []
    errors = {finding["field"]: finding for finding in ended.json["findings"] if finding["severity"] == "error"}
    for field, message, fix in case.problems:
        assert message in errors[field]["message"]
        assert fix in errors[field]["fix"] + errors[field]["message"]


def test_people_read_the_same(tmp_path: Path) -> None:
    ended = orchestrator("validate", *CASES[0].words, cwd=tmp_path)
    assert ended.code == 2
    assert ended.stdout == ""
    for field, message, fix in CASES[0].problems:
        assert f"error: {field}" in ended.stderr
        assert message in ended.stderr
        assert fix in ended.stderr


def test_what_would_fit_really_fits(tmp_path: Path) -> None:
    words = ("model=llama_2_70b", "cluster=dgx_a100_80", "cluster.devices_per_host=1", "training=default", "output=json")
    refused = orchestrator("validate", *words, cwd=tmp_path).json
    assert refused["verdict"] == "infeasible"
    assert refused["fixes"]
    for fix in refused["fixes"]:
        assert orchestrator("validate", *words, *fix["overrides"], cwd=tmp_path).json["verdict"] == "feasible"


def test_problems_of_a_users_own_file_come_together(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "bad.yaml").write_text(
        "# @package _global_\nzero:\n  stag: 3\ntraining:\n  max_steps: many\noptimizer:\n  lr: fast\n"
    )
    ended = orchestrator("validate", "experiment=bad", "output=json", "--config-dir", "mine", cwd=tmp_path)
    assert ended.code == 2
    assert {finding["field"] for finding in ended.json["findings"]} == {"zero.stag", "training.max_steps", "optimizer.lr"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lunch",), "launch"),
        (("validate", "--frobnicate"), "--frobnicate"),
        (("validate", "--config-dir", "nowhere"), "nowhere"),
        (("validate", "zero"), "KEY=VALUE"),
        (("validate", "zero=stage1,stage2"), "-m"),
        (("validate", "model=hf"), "model.config_path"),
        (("validate", "model=hf", "model.config_path=nowhere"), "nowhere"),
        (("validate", "data=text"), "data.path"),
        (("validate", "run_dir=${nowhere}"), "run_dir"),
        (("validate", "model.hidden_size=0", "training.max_steps=-1"), "training.max_steps"),
        (("launch", "checkpoint.resume=true", "run_dir=nothing_here"), "checkpoint.resume"),
        (("launch", "parallelism.sequence_parallel=true"), "parallelism.sequence_parallel"),
        (("validate", "parallelism.pipeline_parallel_size=2", "parallelism.partition_method=type:nothing"), "type:nothing"),
        (("validate", "parallelism.pipeline_parallel_size=2", "parallelism.partition_method='type:['"), "partition_method"),
        (("validate", "parallelism.pipeline_parallel_size=2", "parallelism.partition_method=explicit"), "partition_boundaries"),
        (
            (
                "validate",
                "parallelism=tensor_2_pipeline_2",
                "cluster.devices_per_host=8",
                "parallelism.schedule=dual_pipe_v",
                "training.train_micro_batch_size_per_gpu=4",
            ),
            "gradient_accumulation",
        ),
        (("validate", "training.freeze=[nothing_like_this]"), "nothing_like_this"),
        (("validate", "training.freeze=['(']"), "training.freeze"),
        (("validate", "training.label_smoothing=1"), "training.label_smoothing"),
        (("validate", "model.family=bloom"), "gpt_neox"),
        (("validate", "activation_checkpointing=every_k_layers", "activation_checkpointing.interval=0"), "interval"),
        (("launch", "run_dir=/dev/null"), "run_dir"),
        (("launch", "--package", "zero"), "--cfg"),
        (("launch", "model=llama_3_8b", "cluster=dgx_h100", "cluster.hosts=2", "zero=stage3"), "cluster.hostfile"),
        (("validate", "--config-dir"), "--config-dir"),
        (("validate", "zero=null"), "zero"),
        (("validate", "zero=stage3", "~zero.stage"), "zero.stage"),
        (("validate", "run_dir=''"), "run_dir"),
        (("validate", "model.name='a/../../b'"), "model.name"),
        (("validate", "model=hf", "model.config_path=~nobody-here/x"), "~nobody-here/x"),
        (("validate", "model.hidden_size=1e308"), "model.hidden_size"),
        (("validate", "++output=json", "zero.x=1"), '"verdict": "invalid"'),
    ],
)
def test_other_bad_input_names_what_is_wrong(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    ended = orchestrator(*words, cwd=tmp_path)
    assert ended.code == 2, ended.everything
    assert "Traceback" not in ended.everything
    assert told in ended.everything


@pytest.mark.parametrize("content", [b"zero: [1, 2\n", b"defaults: 3\n", b"\xff\xfe\n", b"# @package _global_\nseed: ${\n"])
def test_broken_yaml_of_a_user_is_named(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_bytes(content)
    ended = orchestrator("validate", "experiment=broken", "--config-dir", "mine", cwd=tmp_path)
    assert ended.code == 2
    assert "Traceback" not in ended.everything
