"""Weights & Biases without a server: what a run records offline, and how the mode is decided."""

from __future__ import annotations

import sys

import pytest

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.run_dir import Attempt
from orchestrator.tracking.description import describe
from orchestrator.tracking.wandb import WandbTracker, point_name
from orchestrator.tracking.wandb_mode import decide_mode
from tests.unit.tracking.records import ACCOUNT, inspected, new_attempt, train_entry, write_metrics

pytest.importorskip("wandb")

ENTRIES = [train_entry(1, 2.0), train_entry(2, 1.0)]


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """An attempt on a machine without a key, with two entries."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ACCOUNT:
        monkeypatch.delenv(name, raising=False)
    attempt = new_attempt(tmp_path / "run")
    write_metrics(attempt, ENTRIES)
    return attempt


def recorded(attempt: Attempt, said: list[str], **options) -> WandbTracker:
    tracker = WandbTracker(TrackingConfig(**options), run_id="abc12345", say=said.append)
    tracker.start(describe(attempt.path))
    for entry in ENTRIES:
        tracker.log(entry)
    tracker.summary({"final_loss": 1.0})
    tracker.finish(failed=False)
    return tracker


def test_options_name_the_run_and_its_group(attempt):
    said: list[str] = []
    options = {"name": "mine", "group": "ours", "job_type": "ablation", "tags": ["a", "b"]}
    tracker = recorded(attempt, said, wandb=WandbMode.auto, **options)
    assert tracker.record is not None
    assert said == [f"W&B offline: {tracker.record['directory']}"]
    (run,) = inspected(tracker.record["directory"])["run"]
    shown = {name: run[key] for name, key in zip(options, ("display_name", "run_group", "job_type", "tags"), strict=True)}
    assert shown == options
    assert run["run_id"] == "abc12345"


@pytest.mark.parametrize(("moment", "place"), [("start", "init"), ("log", "Run.log"), ("end", "Run.finish")])
def test_a_failure_of_wandb_is_said_once_and_stops_nothing(attempt, monkeypatch, moment, place):
    said: list[str] = []

    def broken(*_args, **_kwargs):
        raise RuntimeError("the service went away\nwith details")

    monkeypatch.setattr(f"wandb.{place}", broken)
    recorded(attempt, said, wandb=WandbMode.offline)
    failures = [line for line in said if "the service went away" in line]
    assert len(failures) == 1, moment
    assert "details" not in failures[0]


def test_a_wandb_that_cannot_be_imported_is_said_once(attempt, monkeypatch):
    said: list[str] = []
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert recorded(attempt, said, wandb=WandbMode.offline).record is None
    (line,) = said
    assert line.startswith("W&B failed and records no more")


def test_a_point_of_a_sweep_is_named_by_the_keys_and_values_it_sets():
    overrides = ["zero=stage1", "training.train_micro_batch_size_per_gpu=2", "+a.b=[1,2]", "hydra.job.name=x"]
    assert point_name(overrides) == "zero=stage1 train_micro_batch_size_per_gpu=2 b=[1,2]"


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


@pytest.mark.parametrize(
    ("machine", "base_url", "mode"),
    [
        ("api.wandb.ai", None, WandbMode.online),
        ("api.forge.coreweave.com", None, WandbMode.online),
        ("api.wandb.ai", "https://wandb.example.org", WandbMode.offline),
        ("wandb.example.org:8080", "https://wandb.example.org:8080", WandbMode.online),
    ],
)
def test_a_key_in_netrc_counts_for_its_own_server(tmp_path, machine, base_url, mode):
    (tmp_path / ".netrc").write_text(f"machine {machine} login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    environment = {"HOME": str(tmp_path)} | ({"WANDB_BASE_URL": base_url} if base_url else {})
    assert decide_mode(WandbMode.auto, environment).mode is mode
