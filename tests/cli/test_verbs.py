"""The verbs that plan: what they print, their JSON and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator

DEVICE_KEYS = {"stage", "ranks", "allocated_bytes", "reserved_bytes", "device_bytes", "capacity_bytes", "components"}
HOST_KEYS = {"host", "start_bytes", "step_bytes", "save_bytes", "capacity_bytes", "components"}
TIME_KEYS = {"step_seconds", "tokens_per_second_per_device", "model_flops_utilization", "bubble_fraction", "components"}


def test_validate_json_has_the_promised_shape(tmp_path: Path) -> None:
    ended = orchestrator("validate", "experiment=gpt3_175b_3d_128_hosts", "data.path=/data", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    report = ended.json
    assert report["verdict"] == "feasible"
    assert report["layout"] == {
        "world_size": 1024,
        "data_parallel_size": 32,
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 4,
        "train_batch_size": 1536,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 48,
    }
    assert [entry["stage"] for entry in report["memory"]["device"]] == [0, 1, 2, 3]
    assert all(entry.keys() >= DEVICE_KEYS for entry in report["memory"]["device"])
    assert len(report["memory"]["host"]) == 128
    assert all(entry.keys() >= HOST_KEYS for entry in report["memory"]["host"])
    assert report["time"].keys() >= TIME_KEYS
    exposed = sum(component["exposed_seconds"] for component in report["time"]["components"].values())
    assert exposed == pytest.approx(report["time"]["step_seconds"])
    assert all(component["reason"] for component in report["time"]["components"].values())
    assert not list(tmp_path.iterdir())


def test_validate_text_shows_plan_and_verdict(tmp_path: Path) -> None:
    ended = orchestrator("validate", cwd=tmp_path)
    assert ended.code == 0
    for part in ("demo", "data 2 x pipeline 1 x tensor 1 = 2 ranks", "memory of one rank", "verdict: feasible"):
        assert part in ended.stdout


def test_compile_prints_a_deepspeed_config_and_nothing_else(tmp_path: Path) -> None:
    ended = orchestrator("compile", "zero=stage2", "training.gradient_clipping=0.5", cwd=tmp_path)
    assert ended.code == 0
    ds_config = json.loads(ended.stdout)
    assert ds_config["zero_optimization"]["stage"] == 2
    assert ds_config["gradient_clipping"] == 0.5
    assert ds_config["train_batch_size"] == 16


def test_a_hostfile_sets_hosts_and_slots(tmp_path: Path) -> None:
    hostfile = Path(__file__).parents[2] / "hostfile.example"
    words = (
        "model=llama_3_8b",
        "cluster=dgx_h100",
        "zero=stage3",
        "training=default",
        f"cluster.hostfile={hostfile}",
        "output=json",
    )
    ended = orchestrator("validate", *words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert ended.json["layout"]["world_size"] == 32
    assert [entry["host"] for entry in ended.json["memory"]["host"]] == [f"gpu-node-0{number}" for number in (1, 2, 3, 4)]


def test_doctor_names_what_to_install(tmp_path: Path) -> None:
    empty = tmp_path / "ops"
    empty.mkdir()
    (empty / "cpu_adam").mkdir()
    (empty / "cpu_adam" / "lock").touch()
    ended = orchestrator(
        "doctor", "cluster=dgx_h100", "output=json", cwd=tmp_path, environment={"TORCH_EXTENSIONS_DIR": str(empty)}
    )
    rules = {finding["rule"] for finding in ended.json["findings"]}
    assert {"ops", "build-lock"} <= rules
    assert ended.json["machine"]["packages"]["deepspeed"]
    if not ended.json["machine"]["accelerators"]["devices"]:
        assert ended.code == 3
        assert "devices" in rules


def test_doctor_is_content_with_the_demo(tmp_path: Path) -> None:
    key = "sixteen-secret-words"
    ended = orchestrator("doctor", "tracking=wandb", cwd=tmp_path, environment={"WANDB_MODE": "", "WANDB_API_KEY": key})
    assert ended.code == 0, ended.everything
    assert "is ready" in ended.stdout
    assert "W&B would record online (there is a key)" in ended.stdout
    assert key not in ended.everything


@pytest.mark.parametrize("verb", ["validate", "compile", "launch", "doctor"])
def test_help_explains_the_verb_and_every_group(verb: str, tmp_path: Path) -> None:
    ended = orchestrator(verb, "--help", cwd=tmp_path)
    assert ended.code == 0
    for part in (f"orchestrator {verb}", "Examples:", "llama_3_8b", "dgx_h100", "zero.stage", "training.train_batch_size"):
        assert part in ended.stdout


def test_hydra_flags_work(tmp_path: Path) -> None:
    shown = orchestrator("launch", "--cfg", "job", "zero=stage3", cwd=tmp_path)
    assert shown.code == 0
    assert "stage: 3" in shown.stdout
    tree = orchestrator("launch", "--info", "defaults-tree", cwd=tmp_path)
    assert "model: demo" in tree.stdout
    assert not list(tmp_path.iterdir())


def test_without_words_the_verbs_are_listed(tmp_path: Path) -> None:
    ended = orchestrator(cwd=tmp_path)
    assert ended.code == 2
    for verb in ("validate", "compile", "launch", "doctor"):
        assert verb in ended.stdout
