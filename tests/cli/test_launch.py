"""Launches through the real ``deepspeed`` launcher: two ranks, gloo, a tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.control import Stop, read_outcome, request_stop
from tests.cli.command_line import Ended, orchestrator

SMOKE = ("experiment=smoke", "run_dir=run")
LONG = (*SMOKE, "training.max_steps=100000", "training.evaluate_sequences=8")


def metrics(run_dir: Path, attempt: int = 1) -> list[dict]:
    # a line without its end is still being written
    lines = (run_dir / "attempts" / str(attempt) / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def processes_of(run_dir: Path) -> list[int]:
    """Living processes whose command line or working directory names the run, or whose environment carries its mark."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.cwd(), process.environ().get("TEST_MARK", "")]
            if any(str(run_dir) in word for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """One run to its end, with W&B offline."""
    folder = tmp_path_factory.mktemp("launch")
    ended = orchestrator("launch", *SMOKE, "tracking=wandb_offline", "output=json", "zero=stage3", cwd=folder)
    assert ended.code == 0, ended.everything
    return ended, folder / "run"


def test_three_dimensions_through_the_launcher_and_out_as_a_hugging_face_folder(tmp_path: Path) -> None:
    """Four processes, tensor 2 x pipeline 2, and nothing but the command line from the first step to the folder."""
    words = ("experiment=smoke", "parallelism=tensor_2_pipeline_2", "cluster.devices_per_host=4", "run_dir=run", "output=json")
    ended = orchestrator("launch", *words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert ended.json["result"]["steps"] == 5
    assert len(ended.json["result"]["memory"]["ranks"]) == 4
    exported = orchestrator("export", "run_dir=run", "output=json", cwd=tmp_path)
    assert exported.code == 0, exported.everything
    assert (tmp_path / "run" / "export" / "model.safetensors").is_file()


def test_a_finished_run_says_so_in_json(finished: tuple[Ended, Path]) -> None:
    ended, run_dir = finished
    report = ended.json
    assert report["status"] == "completed"
    assert report["result"]["steps"] == 5
    assert report["result"]["metric"] == report["result"]["held_out_loss"]
    assert Path(report["result"]["checkpoint"]).is_relative_to(run_dir)
    assert report["result"]["memory"]["measured_bytes"] > 0
    assert report["result"]["memory"]["predicted_bytes"] > 0


def test_progress_goes_to_people_while_it_runs(finished: tuple[Ended, Path]) -> None:
    ended, _ = finished
    assert "step 5/5" in ended.stderr
    assert "deepspeed" in ended.stderr


def test_metrics_have_every_step(finished: tuple[Ended, Path]) -> None:
    _, run_dir = finished
    steps = [entry["step"] for entry in metrics(run_dir) if entry["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5]


def test_nothing_is_left_running(finished: tuple[Ended, Path]) -> None:
    assert not left_of(finished[1])


def test_the_request_is_frozen(finished: tuple[Ended, Path]) -> None:
    _, run_dir = finished
    assert json.loads((run_dir / "request" / "ds_config.json").read_text())["zero_optimization"]["stage"] == 3
    again = orchestrator("launch", *SMOKE, "output=json", cwd=run_dir.parent)
    assert again.code == 2
    assert again.json["findings"][0]["field"] == "run_dir"


def test_wandb_has_the_run_with_its_config_and_every_loss(finished: tuple[Ended, Path]) -> None:
    ended, run_dir = finished
    (recorded,) = Path(ended.json["result"]["wandb"]["directory"]).rglob("*.wandb")
    program = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(recorded)]
    # W&B's program leaves its temporary folders behind
    environment = {**os.environ, "TMPDIR": str(run_dir.parent)}
    shown = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True, env=environment).stdout
    records = [json.loads(line) for line in shown.splitlines()]
    (config,) = [record["run"]["config"]["update"] for record in records if record["type"] == "run"]
    assert config["config"]["zero"]["stage"] == 3
    assert config["ds_config"]["train_batch_size"] == 8
    logged = [record["history"]["item"] for record in records if record["type"] == "history"]
    losses = [entry["train/loss"] for entry in logged if "train/loss" in entry]
    assert losses == pytest.approx([entry["loss"] for entry in metrics(run_dir) if entry["kind"] == "train"])


def test_a_resumed_run_goes_on_where_it_stopped(finished: tuple[Ended, Path], tmp_path: Path) -> None:
    """With the words it was started with, from another directory, and one change."""
    _, run_dir = finished
    words = (f"run_dir={run_dir}", "training.max_steps=7", "checkpoint.resume=true", "output=json")
    ended = orchestrator("launch", *words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert [entry["step"] for entry in metrics(run_dir, attempt=2) if entry["kind"] == "train"] == [6, 7]


def test_another_layout_cannot_resume(finished: tuple[Ended, Path]) -> None:
    _, run_dir = finished
    ended = orchestrator("launch", "run_dir=run", "zero=stage1", "checkpoint.resume=true", "output=json", cwd=run_dir.parent)
    assert ended.code == 2
    assert any(finding["field"] == "zero.stage" for finding in ended.json["findings"])


def test_other_data_cannot_resume(finished: tuple[Ended, Path]) -> None:
    _, run_dir = finished
    ended = orchestrator("launch", "run_dir=run", "seed=7", "checkpoint.resume=true", "output=json", cwd=run_dir.parent)
    assert ended.code == 2
    refused = [finding["field"] for finding in ended.json["findings"] if finding["severity"] == "error"]
    assert refused == ["seed"]


def test_a_dry_run_prints_a_command_that_works_in_a_shell(tmp_path: Path) -> None:
    ended = orchestrator("launch", *SMOKE, "dry_run=true", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    again = orchestrator("launch", *SMOKE, "dry_run=true", "output=json", cwd=tmp_path)
    assert again.code == 0, "a dry run leaves the directory to the run"
    attempt = Path(again.json["attempt"])
    assert not (attempt / "result.json").exists()
    pasted = subprocess.run(
        ["bash", "-c", again.json["command"]], cwd="/", capture_output=True, text=True, timeout=300, check=False
    )
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    assert json.loads((attempt / "result.json").read_text())["status"] == "completed"


def training(run_dir: Path, *words: str) -> subprocess.Popen[str]:
    """A launch that will not end by itself, after its first step."""
    launcher = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "launch", *LONG, *words],
        cwd=run_dir.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TEST_MARK": str(run_dir)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not (run_dir / "attempts/1/metrics.jsonl").exists() or not metrics(run_dir):
        assert time.monotonic() < deadline
        assert launcher.poll() is None
        time.sleep(0.2)
    return launcher


def left_of(run_dir: Path, within: float = 30.0) -> list[int]:
    """What lives of a run once it has had the time to go: W&B's own service is no child of the run, and leaves by itself."""
    deadline = time.monotonic() + within
    while (left := processes_of(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def rank_process(run_dir: Path, rank: int) -> psutil.Process:
    record = json.loads((run_dir / "attempts/1/ranks" / f"{rank}.json").read_text())
    return psutil.Process(record["pid"])


def test_a_killed_rank_is_named_with_what_it_means(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = training(run_dir)
    rank_process(run_dir, 1).kill()
    printed, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 4, printed
    assert re.search(r"the run failed: rank 1 on \S+: .*SIGKILL.*out-of-memory", printed)
    assert "Traceback" not in printed
    assert not processes_of(run_dir)


def test_ranks_whose_controller_is_killed_end_by_themselves(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = training(run_dir)
    launcher.kill()
    launcher.communicate(timeout=60)
    assert not left_of(run_dir, within=40)


def test_a_setup_line_that_fails_is_said_with_what_it_printed(tmp_path: Path) -> None:
    words = (*SMOKE, "preflight.enabled=false", "launcher.setup=['true','module load cuda/99']", "output=json")
    ended = orchestrator("launch", *words, cwd=tmp_path)
    assert ended.code == 4, ended.everything
    assert "launcher.setup" in ended.json["reason"]
    assert ended.json["lines"][-1].startswith("launcher.setup failed: module load cuda/99")
    assert any("command not found" in line for line in ended.json["lines"])


def test_a_detached_run_goes_on_without_its_shell_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    environment = {"TEST_MARK": str(tmp_path / "run"), "WANDB_API_KEY": "hush-hush-hush"}
    words = (*LONG, "launcher.detach=true", "output=json")
    started = orchestrator("launch", *words, cwd=tmp_path, environment=environment)
    assert started.code == 0, started.everything
    assert started.json["status"] == "detached"
    attempt = Path(started.json["attempt"])
    controller = psutil.Process(started.json["controller"]["pid"])
    assert os.getsid(controller.pid) == controller.pid
    try:
        again = orchestrator("launch", *words, cwd=tmp_path)
        assert again.code == 2, again.everything
        deadline = time.monotonic() + 240
        while not (attempt / "metrics.jsonl").exists() or not metrics(tmp_path / "run"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        shown = []
        for pid in processes_of(tmp_path / "run"):
            with suppress(psutil.NoSuchProcess):
                shown += psutil.Process(pid).cmdline()
        assert shown and not any("hush" in word for word in shown)
        request_stop(attempt, Stop.save)
        while read_outcome(attempt) is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        request_stop(attempt, Stop.now)
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert (outcome["status"], outcome["stopped_by"]) == ("interrupted", "request")
    assert Path(outcome["saved"]).is_dir()
    controller.wait(timeout=60)
    assert not processes_of(tmp_path / "run")
    assert not [path for path in attempt.rglob("*") if path.is_file() and b"hush-hush-hush" in path.read_bytes()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_stopped_launch_saves_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    run_dir = tmp_path / "run"
    launcher = training(run_dir, "tracking=wandb_offline")
    launcher.send_signal(number)
    printed, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 130, printed
    assert "Traceback" not in printed
    (saved,) = (run_dir / "checkpoints").glob("global_step*")
    assert f"saved: checkpoint {saved}" in printed
    assert int(saved.name.removeprefix("global_step")) == metrics(run_dir)[-1]["step"]
    assert not left_of(run_dir)


def test_a_failing_rank_fails_the_run_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    text = ("data=text", f"data.path={tmp_path / 'empty'}", "data.tokenizer_vocab_size=512", "model.vocab_size=512")
    ended = orchestrator("launch", *SMOKE, *text, f"data.cache_dir={tmp_path / 'cache'}", "output=json", cwd=tmp_path)
    assert ended.code == 4, ended.everything
    assert ended.json["status"] == "failed"
    assert str(tmp_path / "empty") in ended.json["reason"]
    assert ended.json["diagnosis"]["exit_code"] == 1
    assert not processes_of(tmp_path / "run")


def test_an_installed_wheel_is_not_shadowed_by_the_users_folders(tmp_path: Path) -> None:
    """A user's own ``models/`` and ``conf/`` in the working directory stay out of the way of ours."""
    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "pip", "wheel", str(root), "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "dist")]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    installed = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    project = tmp_path / "project"
    for folder in ("models", "conf"):
        (project / folder).mkdir(parents=True)
        (project / folder / "__init__.py").write_text("raise ImportError('the user\\'s own folder')\n")
    (project / "conf" / "config.yaml").write_text("mine: true\n")
    environment = {"PYTHONPATH": str(installed)}
    where = subprocess.run(
        [sys.executable, "-c", "import orchestrator; print(orchestrator.__file__)"],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert where.stdout.startswith(str(installed))
    ended = orchestrator("launch", *SMOKE, "output=json", cwd=project, environment=environment)
    assert ended.code == 0, ended.everything
