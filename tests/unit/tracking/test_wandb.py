"""Weights & Biases without a server: what a run records offline, and how the mode is decided."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.tracking.tracker import RunDescription
from orchestrator.tracking.wandb import WandbTracker, decide_mode

wandb = pytest.importorskip("wandb")

CONFIG = {"seed": 7, "model": {"name": "tiny"}}


@pytest.fixture
def no_account(tmp_path, monkeypatch):
    """A home without a key."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)


def description(tmp_path, *, attempt: int = 1) -> RunDescription:
    attempt_dir = tmp_path / "attempts" / str(attempt)
    attempt_dir.mkdir(parents=True)
    return RunDescription(
        run_name="my run",
        attempt_dir=attempt_dir,
        config=CONFIG,
        plan={"verdict": "feasible"},
        ds_config={"train_batch_size": 8},
    )


def inspect(directory: str, *arguments: str) -> list[dict]:
    executable = Path(sys.executable).with_name("wandb")
    done = subprocess.run(
        [executable, "leet", "inspect", "--json", *arguments, directory], capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("no_account")
def test_an_offline_run_holds_config_metrics_and_summary(tmp_path):
    said: list[str] = []
    tracker = WandbTracker(TrackingConfig(wandb=WandbMode.auto, group="group", tags=["a"]), run_id="abc12345", say=said.append)
    tracker.start(description(tmp_path))
    for step in (5, 10):
        tracker.log({"kind": "train", "step": step, "loss": 4.0 - step / 10, "lr": 0.1, "time": 0.0})
    tracker.log({"kind": "evaluate", "step": 10, "held_out_loss": 2.5, "time": 0.0})
    tracker.summary({"final_loss": 3.0})
    tracker.finish(failed=False)
    assert tracker.record is not None
    assert (tracker.record["mode"], tracker.record["id"], tracker.record["url"]) == ("offline", "abc12345", None)
    assert said == [f"W&B offline: {tracker.record['directory']}"]
    records = json.dumps(inspect(tracker.record["directory"]))
    for expected in (
        "abc12345",
        "my run",
        "group",
        "feasible",
        "train_batch_size",
        "train/loss",
        "evaluate/held_out_loss",
        "final_loss",
    ):
        assert expected in records


@pytest.mark.usefixtures("no_account")
def test_a_second_attempt_continues_the_same_run(tmp_path):
    directories = []
    for attempt in (1, 2):
        tracker = WandbTracker(TrackingConfig(wandb=WandbMode.offline), run_id="abc12345", say=lambda _: None)
        tracker.start(description(tmp_path, attempt=attempt))
        tracker.log({"kind": "train", "step": attempt, "loss": 1.0})
        tracker.finish(failed=attempt == 1)
        assert tracker.record is not None
        directories.append(tracker.record["directory"])
    assert len({Path(directory).name.rsplit("-", 1)[1] for directory in directories}) == 1
    assert len(set(directories)) == 2


@pytest.mark.parametrize("moment", ["start", "log"])
def test_a_failure_of_wandb_is_said_once_and_stops_nothing(tmp_path, monkeypatch, moment):
    said: list[str] = []

    def broken(*_args, **_kwargs):
        raise RuntimeError("the service went away\nwith details")

    tracker = WandbTracker(TrackingConfig(wandb=WandbMode.offline), run_id="abc12345", say=said.append)
    if moment == "start":
        monkeypatch.setattr(wandb, "init", broken)
    tracker.start(description(tmp_path))
    if moment == "log":
        monkeypatch.setattr(wandb.Run, "log", broken)
    for step in (1, 2, 3):
        tracker.log({"kind": "train", "step": step, "loss": 1.0})
    tracker.summary({"final_loss": 1.0})
    tracker.finish(failed=False)
    failures = [line for line in said if "the service went away" in line]
    assert len(failures) == 1
    assert "details" not in failures[0]


@pytest.mark.parametrize(
    ("configured", "environment", "mode"),
    [
        (WandbMode.auto, {}, WandbMode.offline),
        (WandbMode.auto, {"WANDB_API_KEY": "k"}, WandbMode.online),
        (WandbMode.auto, {"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, WandbMode.offline),
        (WandbMode.auto, {"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, WandbMode.disabled),
        (WandbMode.offline, {"WANDB_API_KEY": "k", "WANDB_MODE": "online"}, WandbMode.offline),
        (WandbMode.disabled, {"WANDB_MODE": "online"}, WandbMode.disabled),
        (WandbMode.online, {"WANDB_API_KEY": "k"}, WandbMode.online),
    ],
)
def test_the_mode_follows_the_configuration_then_the_environment_then_the_key(tmp_path, configured, environment, mode):
    decision = decide_mode(configured, {"HOME": str(tmp_path), **environment})
    assert (decision.mode, decision.notice) == (mode, None)


@pytest.mark.parametrize(("configured", "environment"), [(WandbMode.online, {}), (WandbMode.auto, {"WANDB_MODE": "online"})])
def test_online_without_a_key_goes_offline_and_says_so(tmp_path, configured, environment):
    decision = decide_mode(configured, {"HOME": str(tmp_path), **environment})
    assert decision.mode is WandbMode.offline
    assert decision.notice is not None
    assert "no key" in decision.notice


@pytest.mark.parametrize(("base_url", "mode"), [(None, WandbMode.online), ("https://wandb.example.org", WandbMode.offline)])
def test_a_key_in_netrc_counts_for_its_own_server(tmp_path, base_url, mode):
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    environment = {"HOME": str(tmp_path)} | ({"WANDB_BASE_URL": base_url} if base_url else {})
    assert decide_mode(WandbMode.auto, environment).mode is mode
