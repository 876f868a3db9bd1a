"""Which devices a point of a sweep gets, beside others that run at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands import point_devices as module
from orchestrator.commands.planned import plan_run
from orchestrator.commands.point_devices import point_devices
from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.launch.locks import leased, runtime_dir

SMOKE = ["experiment=smoke", "cluster=dgx_h100", "training.train_batch_size=8", "training.train_micro_batch_size_per_gpu=1"]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")


def configured(*words: str) -> RunConfig:
    return load_config(["command=launch", *SMOKE, *words])


def never() -> None:
    raise AssertionError("it waits")


def devices_of(config: RunConfig) -> tuple[int, ...]:
    """Where the plan puts the ranks, counted among the visible devices."""
    plan = plan_run(config)
    assert plan.cluster is not None and plan.layout is not None
    assert plan.layout.world_size == len(plan.cluster.hosts[0].device_numbers)
    return plan.cluster.hosts[0].device_numbers


def test_points_side_by_side_get_devices_of_their_own(tmp_path: Path) -> None:
    config = configured("cluster.devices_per_host=2")
    with point_devices(config, tmp_path, waiting=never) as first, point_devices(config, tmp_path, waiting=never) as second:
        assert (devices_of(first), devices_of(second)) == ((0, 1), (2, 3))
        assert first is config


def test_a_point_waits_for_devices_of_another_sweep(tmp_path: Path) -> None:
    config = configured("cluster.devices_per_host=4")
    with leased(["localhost:6"], 1, runtime_dir() / "devices") as held:
        assert held
        with pytest.raises(AssertionError, match="it waits"), point_devices(config, tmp_path, waiting=never):
            pass


def test_named_devices_are_the_ones_that_are_held(tmp_path: Path) -> None:
    chosen = configured("cluster.devices_per_host=4", "cluster.include='localhost:2,3'")
    others = configured("cluster.devices_per_host=2")
    with point_devices(chosen, tmp_path, waiting=never), point_devices(others, tmp_path, waiting=never) as config:
        assert devices_of(config) == (0, 1)


def test_hosts_of_a_hostfile_are_held_by_name(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("node-a slots=8\nnode-b slots=8\n")
    config = configured(f"cluster.hostfile={tmp_path / 'hostfile'}", "training.train_batch_size=16")
    with (
        point_devices(config, tmp_path, waiting=never),
        pytest.raises(AssertionError, match="it waits"),
        point_devices(config, tmp_path, waiting=never),
    ):
        pass


def test_cores_are_shared_out_among_the_points_of_one_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _pid: {0, 1})
    one = load_config(["experiment=smoke", "cluster.devices_per_host=1"])
    many = load_config(["experiment=smoke", "cluster.devices_per_host=4"])
    with point_devices(one, tmp_path / "a", waiting=never), point_devices(one, tmp_path / "a", waiting=never):
        with pytest.raises(AssertionError, match="it waits"), point_devices(one, tmp_path / "a", waiting=never):
            pass
        with point_devices(many, tmp_path / "b", waiting=never) as config:
            assert config is many
