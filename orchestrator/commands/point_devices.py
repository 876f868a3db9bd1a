"""The devices of a sweep's point: those that no other point holds, where points run at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.commands.planned import hosts_of
from orchestrator.config.enums import Accelerator, LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.launch.locks import leased, runtime_dir
from orchestrator.launch.preflight import probe
from orchestrator.planning.cluster_spec import Host

LOCAL_HOST = "localhost"


@contextmanager
def point_devices(config: RunConfig, sweep_dir: Path, *, waiting: Callable[[], None]) -> Iterator[RunConfig]:
    """Hold the devices of a point as long as it runs, waiting until they are free; gives the configuration that names them.

    On this machine alone any devices will do; on named hosts the point needs those that its configuration names. GPUs are
    held against every sweep of this user that is started on this machine, processor cores only against the points of this
    one. A Slurm job of a point's own is given its devices by Slurm.
    """
    hosts, _ = hosts_of(config)
    if config.launcher.backend is LauncherBackend.slurm:
        yield config
    elif hosts is None and config.cluster.hosts == 1:
        with _of_this_machine(config, sweep_dir, waiting) as chosen:
            yield chosen
    else:
        named = [f"{host.name}:{number}" for host in hosts or () for number in _driver_numbers(config, host)]
        with leased(named, len(named), runtime_dir() / "devices", waiting=waiting):
            yield config


@contextmanager
def _of_this_machine(config: RunConfig, sweep_dir: Path, waiting: Callable[[], None]) -> Iterator[RunConfig]:
    cluster = config.cluster
    if cluster.accelerator is Accelerator.cpu:
        cores = [f"core-{core}" for core in sorted(os.sched_getaffinity(0))]
        with leased(cores, min(cluster.devices_per_host, len(cores)), sweep_dir / ".cores", waiting=waiting):
            yield config
        return
    visible = visible_devices()
    if len(visible) < cluster.devices_per_host:
        # preflight says what is missing
        yield config
        return
    names = {f"{LOCAL_HOST}:{number}": index for index, number in enumerate(visible)}
    with leased(list(names), cluster.devices_per_host, runtime_dir() / "devices", waiting=waiting) as taken:
        yield _with_devices(config, sorted(names[name] for name in taken), len(visible))


def _with_devices(config: RunConfig, numbers: list[int], present: int) -> RunConfig:
    """The configuration on these of the devices that this machine shows."""
    if numbers == list(range(config.cluster.devices_per_host)):
        return config
    include = f"{LOCAL_HOST}:{','.join(map(str, numbers))}"
    return replace(config, cluster=replace(config.cluster, devices_per_host=present, include=include))


def _driver_numbers(config: RunConfig, host: Host) -> list[str]:
    """The devices of a host by their drivers' numbers. Those of this machine are counted among the visible ones."""
    visible = visible_devices() if host.name == LOCAL_HOST and config.cluster.accelerator is Accelerator.cuda else []
    return [visible[number] if number < len(visible) else str(number) for number in host.device_numbers]


def visible_devices() -> list[str]:
    """The GPUs of this machine by the numbers the driver gives them, less those that CUDA_VISIBLE_DEVICES hides."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return [name.strip() for name in shown.split(",") if name.strip()]
    return [str(number) for number in range(len(probe.devices({})["devices"]))]
