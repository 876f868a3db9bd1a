"""The recorder beside rank 0: what it leaves when all goes well, when servers are bad, and when its rank is killed."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.commands.tracked import given_run_id, sync_command
from orchestrator.run_dir import read_json
from orchestrator.sweep_point import PointStatus, Sweep, SweepPoint
from orchestrator.tracking.recorder import recorder_environment
from tests.unit.tracking.records import (
    ACCOUNT,
    Recorder,
    evaluate_entry,
    history,
    inspected,
    new_attempt,
    summary,
    train_entry,
    write_metrics,
)
from tests.unit.tracking.server import HANGS, KEY, WORKS, refusing, served

pytest.importorskip("wandb")

LOSSES = [4.0, 3.0, 3.5, 2.0, 2.5]
DOWN = {"refuses": None, "hangs": HANGS, "answers 500": "500", "knows no such key": "401", "is over its quota": "429"}
BREAKS = {"hangs": HANGS, "refuses": "403"}
SECONDS = 120
"""More than any start of W&B takes while other tests run."""


@pytest.fixture(scope="module")
def no_account(tmp_path_factory):
    """A home without a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in ACCOUNT:
            patch.delenv(name, raising=False)
        yield patch


@pytest.fixture(scope="module")
def online(tmp_path_factory, no_account):
    """Recordings at servers of every kind, made at once; by kind their record, what was said, and what the server got."""
    folder = tmp_path_factory.mktemp("online")
    kinds = {f"down: {name}": {"queries": status} for name, status in DOWN.items()}
    kinds |= {f"breaks: {name}": {"uploads": status} for name, status in BREAKS.items()}
    kinds |= {"works": {}, "shared": {}, "service dies": {"kills": True}}
    recorders, servers = {}, {}
    with ExitStack() as stack:
        for number, (kind, behaviour) in enumerate(kinds.items()):
            is_down = "queries" in behaviour
            options = [f"tracking.init_timeout_seconds={2 if is_down else SECONDS}", "tracking.wandb=online"]
            options += [f"tracking.finish_timeout_seconds={4 if 'uploads' in behaviour else SECONDS}"]
            attempt = new_attempt(folder / str(number), *options, f"tracking.shared={kind == 'shared'}")
            write_metrics(attempt, [train_entry(step, loss) for step, loss in enumerate(LOSSES, start=1)])
            servers[kind] = None if behaviour.get("queries", WORKS) is None else stack.enter_context(served(**behaviour))
            account = stack.enter_context(refusing()) if servers[kind] is None else servers[kind].environment
            for name, value in account.items():
                no_account.setenv(name, value)
            recorders[kind] = recorder = Recorder(attempt)
            recorder.start()
        for name in account:
            no_account.delenv(name)
        for recorder in recorders.values():
            recorder.finish(metric=2.0)
            assert not Path(recorder.tracker._temporary).exists(), "nothing stays in /tmp, whatever the server does"
    return recorders, servers


@pytest.mark.parametrize("how", DOWN)
def test_a_server_that_is_down_costs_nothing_but_the_upload(online, how):
    recorder = online[0][f"down: {how}"]
    record = recorder.tracker.record
    assert (record["mode"], record["uploaded"]) == ("offline", False)
    (line,) = recorder.lines
    assert line.startswith(f"[orchestrator] W&B offline: {record['directory']} (it could not go online: ")
    records = inspected(record["directory"])
    assert history(records, "train/loss") == LOSSES
    assert summary(records)["metric"] == 2.0
    assert [ended["exit_code"] for ended in records["exit"]] == [0]
    assert sync_command(recorder.attempt.run_dir) == f"wandb sync {record['directory']}"


@pytest.mark.parametrize("how", BREAKS)
def test_a_server_that_breaks_in_the_middle_leaves_everything_on_the_disk(online, how):
    recorder = online[0][f"breaks: {how}"]
    record = recorder.tracker.record
    assert (record["mode"], record["uploaded"]) == ("online", False)
    assert len([line for line in recorder.lines if "W&B lacks a part of the run, which is kept on the disk" in line]) == 1
    assert history(inspected(record["directory"]), "train/loss") == LOSSES
    assert sync_command(recorder.attempt.run_dir) == f"wandb sync --include-online {record['directory']}"


def test_a_service_of_wandb_that_dies_leaves_the_whole_run_offline(online):
    recorder = online[0]["service dies"]
    record = recorder.tracker.record
    assert record["mode"] == "offline"
    assert len([line for line in recorder.lines if "it failed online" in line]) == 1
    records = inspected(record["directory"])
    assert history(records, "train/loss") == LOSSES
    assert summary(records)["metric"] == 2.0


def test_a_server_that_works_gets_the_run_and_nothing_is_left_to_upload(online):
    recorder, server = online[0]["works"], online[1]["works"]
    record = recorder.tracker.record
    assert (record["mode"], record["uploaded"]) == ("online", True)
    assert recorder.lines[0] == f"[orchestrator] W&B online: {record['url']}"
    assert sync_command(recorder.attempt.run_dir) is None
    assert "train/loss" in "".join(server.uploaded)
    (first, *_) = [variables for name, variables in server.asked if name == "UpsertBucket"]
    assert first["name"] == record["id"]
    assert KEY not in json.dumps(server.asked) + "".join(recorder.lines)


def test_writers_of_a_shared_run_label_their_metrics(online):
    assert online[0]["shared"].tracker.record["uploaded"]
    assert f"/l:{os.uname().nodename}" in "".join(online[1]["shared"].uploaded)


@pytest.fixture(scope="module")
def sweep_point(tmp_path_factory, no_account):  # noqa: ARG001
    """A point of a sweep in two attempts, the first killed after its fifth step; its run directory."""
    run_dir = tmp_path_factory.mktemp("sweeps") / "lr and batch" / "3"
    words = ("experiment=smoke", "optimizer.lr=0.01,0.1", "training.max_steps=7,8")
    Sweep(overrides=words, metric=None, direction="minimize", created=0.0, working_directory="/").write(run_dir.parent)
    overrides = ("experiment=smoke", "optimizer.lr=0.01", "training.max_steps=7")
    SweepPoint(number=3, overrides=overrides, config_hash="", status=PointStatus.running, started=0.0).write(run_dir)
    options = ("tracking=wandb_offline", "tracking.checkpoints=true", "tracking.csv=true", "tracking.tensorboard=true")
    first = Recorder(new_attempt(run_dir, *options))
    write_metrics(first.attempt, [train_entry(1, 4.0), train_entry(3, 2.0), evaluate_entry(3, 3.0), train_entry(5, 3.0)])
    first.start()
    await_(lambda: (first.attempt.path / "wandb.json").exists())
    first.lose_rank()
    assert not Path(first.tracker._temporary).exists()
    second = Recorder(new_attempt(run_dir, *options))
    second.start()
    write_metrics(second.attempt, [train_entry(5, 3.0), evaluate_entry(6, 2.5), {**train_entry(7, 2.5), "mfu": 0.25}])
    checkpoint = run_dir / "checkpoints" / "global_step7"
    checkpoint.mkdir()
    (checkpoint / "states.pt").touch()
    second.tracker.checkpoint(checkpoint, 7)
    second.finish(metric=2.5)
    return run_dir


@pytest.fixture(scope="module")
def attempts(sweep_point):
    return [inspected(read_json(sweep_point / "attempts" / number / "wandb.json")["directory"]) for number in "12"]


def test_a_restart_goes_on_with_the_run_and_no_step_is_recorded_twice(sweep_point, attempts):
    assert len({records["run"][0]["run_id"] for records in attempts}) == 1
    for name, expected in {"_step": [0, 1, 2, 3, 4, 5], "step": [1, 3, 3, 5, 6, 7], "train/loss": [4.0, 2.0, 3.0, 2.5]}.items():
        assert [value for records in attempts for value in history(records, name)] == expected
    directories = [read_json(path)["directory"] for path in sorted(sweep_point.glob("attempts/*/wandb.json"))]
    assert sync_command(sweep_point) == "wandb sync " + " ".join(f"'{directory}'" for directory in directories)


def test_a_rank_that_was_killed_leaves_a_failed_run(attempts):
    assert [ended["exit_code"] for records in attempts for ended in records["exit"]] == [1, 0]


def test_a_point_is_named_by_what_it_sets_and_grouped_by_its_sweep(attempts):
    for records in attempts:
        (run,) = records["run"]
        assert (run["display_name"], run["run_group"], run["job_type"]) == ("lr=0.01 max_steps=7", "lr and batch", "train")
        config = run["config"]["update"]
        assert config["config"]["training"]["max_steps"] > 0
        assert config["plan"]["layout"] and config["ds_config"]["train_batch_size"]


def test_the_summary_has_the_best_and_what_was_predicted_beside_what_was_measured(attempts):
    values = summary(attempts[1])
    assert values["best/train/loss"] == 2.0
    assert values["best/evaluate/held_out_loss"] == 2.5
    assert values["step_seconds/measured"] == 0.5
    assert values["mfu/measured"] == 0.25
    assert values["metric"] == 2.5


def test_the_compiled_run_and_its_checkpoints_are_artifacts(sweep_point, attempts):
    compiled, checkpoint = attempts[1]["artifact"]
    assert {entry["path"] for entry in compiled["manifest"]["contents"]} == {
        "config.json",
        "ds_config.json",
        "model.json",
        "plan.json",
    }
    (reference,) = checkpoint["manifest"]["contents"]
    assert reference["ref"] == (sweep_point / "checkpoints" / "global_step7" / "states.pt").as_uri()


def test_csv_and_tensorboard_go_on_where_the_first_attempt_ended(sweep_point):
    rows = (sweep_point / "metrics.csv").read_text().splitlines()
    assert rows[0] == "attempt,kind,step,time,loss,step_seconds,tokens_per_second,held_out_loss,mfu"
    assert [row.split(",")[:3] for row in rows[4:6]] == [["1", "train", "5"], ["2", "train", "5"]]
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(sweep_point / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 4.0), (3, 2.0), (5, 3.0), (7, 2.5)]


def test_an_agent_gives_the_run_its_id_and_a_sweep_of_our_own_does_not(sweep_point, tmp_path):
    given = {"WANDB_RUN_ID": "agent1", "WANDB_SWEEP_ID": "sweep1"}
    assert given_run_id(tmp_path, given) == "agent1"
    assert given_run_id(tmp_path, {}) is None
    assert given_run_id(sweep_point, given) is None
    parameters = tmp_path / "parameters.yaml"
    parameters.touch()
    own = recorder_environment({"RANK": "0", "WANDB_SWEEP_PARAM_PATH": str(parameters), **given}, "agent1")
    assert "RANK" not in own
    assert own["WANDB_RUN_ID"] == "agent1"
    assert own["WANDB_SWEEP_PARAM_PATH"] == str(parameters)
    parameters.unlink()
    assert "WANDB_SWEEP_PARAM_PATH" not in recorder_environment({"WANDB_SWEEP_PARAM_PATH": str(parameters)}, "x")


def await_(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
