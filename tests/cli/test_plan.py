"""``plan`` as its users run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import cli
from orchestrator.commands import plan
from orchestrator.commands.plan import host_range
from orchestrator.config.load import load_config
from orchestrator.errors import ConfigurationError
from tests.cli.command_line import orchestrator

SMALL = (
    "model=llama_3_1b",
    "cluster=dgx_a100_80",
    "training=default",
    "training.train_batch_size=64",
    "data.sequence_length=2048",
)


def test_the_plan_is_an_experiment_that_validate_takes_as_it_is(tmp_path: Path) -> None:
    ended = orchestrator("plan", *SMALL, "planner.apply=mine/experiment/best.yaml", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    planned = ended.json
    again = orchestrator("validate", "experiment=best", "--config-dir", "mine", "output=json", cwd=tmp_path)
    assert again.code == 0, again.everything
    assert again.json["verdict"] == "feasible"
    assert again.json["layout"] == planned["best"]["layout"]
    assert again.json["time"] == planned["best"]["time"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return orchestrator("plan", *SMALL, "output=json", cwd=tmp_path_factory.mktemp("plan")).json


def test_overrides_of_every_plan_pass_validate(planned: dict[str, Any], tmp_path: Path) -> None:
    assert planned["verdict"] == "feasible"
    for entry in (planned["best"], *planned["others"][:1]):
        ended = orchestrator("validate", *SMALL, *entry["overrides"], "output=json", cwd=tmp_path)
        assert ended.code == 0, ended.everything
        assert ended.json["time"]["step_seconds"] == entry["time"]["step_seconds"]
    assert not list(tmp_path.iterdir())


def test_parallelism_auto_is_the_best_plan(planned: dict[str, Any], tmp_path: Path) -> None:
    ended = orchestrator("validate", *SMALL, "parallelism=auto", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert ended.json["layout"] == planned["best"]["layout"]
    assert ended.json["time"] == planned["best"]["time"]
    assert "zero.stage=" in ended.stderr
    compiled = orchestrator("compile", *SMALL, "parallelism=auto", "planner.fix.zero_stage=2", "output=json", cwd=tmp_path)
    assert compiled.json["zero_optimization"]["stage"] == 2


def test_parallelism_auto_says_why_nothing_fits(tmp_path: Path) -> None:
    size = ("model=gpt3_175b", "cluster=dgx_a100_80", "training=default", "training.train_batch_size=64")
    pins = ("planner.fix.optimizer_device=none", "planner.fix.param_device=none")
    ended = orchestrator("launch", *size, *pins, "parallelism=auto", "run_dir=run", "output=json", cwd=tmp_path)
    assert ended.code == 2, ended.everything
    (finding,) = ended.json["findings"]
    assert finding["field"] == "parallelism.auto"
    assert "device-memory" in finding["message"]
    assert not (tmp_path / "run").exists()


def test_an_experiment_of_an_experiment_keeps_what_was_asked_for(tmp_path: Path) -> None:
    words = ("experiment=llama_3_8b_dgx_h100", "data.path=/data", "training.max_steps=7", "planner.fix.tp=2")
    ended = orchestrator("plan", *words, "planner.apply=experiment/mine.yaml", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    again = orchestrator("launch", "experiment=mine", "--config-dir", ".", "--cfg", "job", cwd=tmp_path)
    for line in ("path: /data", "max_steps: 7", "sequence_length: 8192", "tensor_parallel_size: 2", "name: llama_3_8b"):
        assert line in again.stdout, again.everything


def test_the_text_shows_the_plan_its_reasons_and_how_to_run_it(tmp_path: Path) -> None:
    ended = orchestrator("plan", *SMALL, "planner.hosts='1,2'", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    for part in ("the best of", "to run it:", "zero.stage=", "device hours", "matrix products", "usual advice for 1B to 10B"):
        assert part in ended.stdout, ended.stdout


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("planner.hosts=many",), "planner.hosts"),
        (("planner.hosts=0..4",), "planner.hosts"),
        (("planner.apply=best.yaml",), "planner.apply"),
        (("planner.objective=beauty",), "planner.objective"),
        (("planner.fix.tp=two",), "planner.fix.tp"),
        (("cluster.memory_bandwidth_gbps=null",), "memory_bandwidth_gbps"),
        (("planner.fix.tp=3",), "planner.fix.tp"),
        (("optimizer.lr=-1",), "optimizer.lr"),
        (("model.hidden_size=null",), "model.hidden_size"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    field: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["plan", *SMALL, *words]) == 2
    told = "".join(capfd.readouterr())
    assert field in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("text", "counts"), [(None, []), ("1..64", [1, 2, 4, 8, 16, 32, 64]), ("3..9", [3, 4, 8, 9]), ("4,8,12", [4, 8, 12])]
)
def test_numbers_of_hosts(text: str | None, counts: list[int]) -> None:
    assert host_range(text) == (counts, [])


def test_more_hosts_than_are_named_are_like_the_last(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    config = load_config(["command=plan", *SMALL, f"cluster.hostfile={tmp_path / 'hosts'}", "planner.hosts='2,4'"])
    found = plan.run(config, []).payload["hosts"]
    assert [(entry["hosts"], entry["best"]["hosts"]) for entry in found] == [(2, 2), (4, 4)]
    assert found[1]["best"]["time"]["step_seconds"] < found[0]["best"]["time"]["step_seconds"]


def test_a_plan_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = load_config(["command=plan", *SMALL, f"planner.apply={tmp_path / 'file' / 'experiment' / 'best.yaml'}"])
    with pytest.raises(ConfigurationError, match="cannot be written: Not a directory"):
        plan.run(config, [])
