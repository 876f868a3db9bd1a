"""Whether this machine can start a run: findings about what is missing, and what to install."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.version import Version

from orchestrator.config.enums import Accelerator, AttentionImplementation, LauncherBackend, PipelineSchedule
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.operators import needed_operators
from orchestrator.findings import Finding, error, info, warning
from orchestrator.launch.machine import PACKAGES, Machine, port_is_free
from orchestrator.units import GIB, format_bytes

_STALE_SECONDS = 900.0
_DUAL_PIPE_V_SINCE = Version("0.19.8")
_NO_LOCAL_DISK = {"tmpfs": "RAM", "ramfs": "RAM", "nfs": "a network disk", "nfs4": "a network disk", "cifs": "a network disk"}
"""File systems that are no local disk, and what they are instead."""
_CHECKPOINT_BYTES_PER_PARAMETER = 14
"""16-bit weights, fp32 master and two Adam moments."""


def machine_findings(machine: Machine, config: RunConfig) -> list[Finding]:
    """What this machine lacks for the accelerator, offload and launcher of ``config``."""
    return [
        *_packages(machine),
        *_features(machine, config),
        *_devices(machine, config),
        *_build_locks(machine),
        *_ops(machine, config),
        *_launcher(machine, config),
    ]


def run_findings(config: RunConfig, *, run_dir: Path, num_parameters: int) -> list[Finding]:
    """What stands in the way of this run on this machine: a taken port, a full disk."""
    findings = list(_named_files(config))
    port = config.launcher.master_port
    if port is not None and not port_is_free(port):
        fix = "stop the other job, choose another port, or leave it null for a free one"
        findings.append(error("master-port", "launcher.master_port", f"port {port} of this host is taken", fix))
    if config.checkpoint.save_every or config.checkpoint.save_at_end:
        needed = _CHECKPOINT_BYTES_PER_PARAMETER * num_parameters
        free = shutil.disk_usage(_existing_parent(run_dir)).free
        if free < needed:
            message = f"one checkpoint takes about {format_bytes(needed)}, {run_dir} has {format_bytes(free)} free"
            findings.append(error("checkpoint-disk", "run_dir", message, "choose a run_dir with room, or checkpoint=none"))
    return findings


def _named_files(config: RunConfig) -> Iterator[Finding]:
    """Files the workers will read, and packages that an option needs."""
    for option, path in (("data.path", config.data.path), ("data.tokenizer_path", config.data.tokenizer_path)):
        if path and not Path(path).exists():
            yield error("data-file", option, f"{path} does not exist on this host", "correct the path")
    disk = config.offload.nvme_path
    if disk and not _can_make(Path(disk)):
        fix = "name a folder on a local disk of every host that this user may write to"
        yield error("nvme-directory", "offload.nvme_path", f"{disk} cannot be written to on this host", fix)
    elif disk and (kind := file_system(Path(disk))) in _NO_LOCAL_DISK:
        message = f"{disk} is on {kind}, which is {_NO_LOCAL_DISK[kind]} and no local disk"
        yield warning("nvme-file-system", "offload.nvme_path", message, "name a folder on a local NVMe disk of every host")
    kernel = config.model.attention_implementation
    if kernel is AttentionImplementation.flash_attention_2 and find_spec("flash_attn") is None:
        fix = "pip install flash-attn, or model.attention_implementation=sdpa"
        yield error(
            "package", "model.attention_implementation", f"{kernel} needs the package flash-attn, which is missing", fix
        )


def _can_make(folder: Path) -> bool:
    parent = _existing_parent(folder)
    return parent.is_dir() and os.access(parent, os.W_OK)


def file_system(folder: Path) -> str:
    """The type of the file system that ``folder`` is, or would be, on; empty when it is not known."""
    inside = [
        part for part in psutil.disk_partitions(all=True) if _existing_parent(folder).resolve().is_relative_to(part.mountpoint)
    ]
    return max(inside, key=lambda part: len(part.mountpoint)).fstype if inside else ""


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _packages(machine: Machine) -> Iterator[Finding]:
    needed = {requirement.name: requirement for requirement in _train_requirements()}
    for name in PACKAGES:
        installed, requirement = machine.packages[name], needed[name]
        if installed is None:
            yield error("package", name, f"{name} is not installed", "pip install 'orchestrator[train]'")
        elif not requirement.specifier.contains(installed, prereleases=True):
            message = f"{name} {installed} is not a supported version"
            yield error("package", name, message, f"pip install '{name}{requirement.specifier}'")


def _features(machine: Machine, config: RunConfig) -> Iterator[Finding]:
    """What the installed DeepSpeed is too old for."""
    installed = machine.packages["deepspeed"]
    asked = config.parallelism.schedule is PipelineSchedule.dual_pipe_v and config.parallelism.pipeline_parallel_size > 1
    if installed is not None and asked and Version(installed) < _DUAL_PIPE_V_SINCE:
        message = f"dual_pipe_v needs DeepSpeed {_DUAL_PIPE_V_SINCE}, and {installed} is installed"
        fix = f"pip install 'deepspeed>={_DUAL_PIPE_V_SINCE}', or parallelism.schedule=one_f_one_b"
        yield error("deepspeed-version", "parallelism.schedule", message, fix)


def _train_requirements() -> list[Requirement]:
    """The ``[train]`` extra as it was installed: one owner for the versions, ``pyproject.toml``."""
    requirements = [Requirement(text) for text in metadata.requires("orchestrator") or []]
    return [
        requirement for requirement in requirements if requirement.marker and requirement.marker.evaluate({"extra": "train"})
    ]


def _devices(machine: Machine, config: RunConfig) -> Iterator[Finding]:
    found = len(machine.devices)
    if config.cluster.accelerator is Accelerator.cuda and not found and "rocm" not in (machine.packages["torch"] or ""):
        fix = "run on a host with GPUs, or cluster=local_cpu"
        yield error("devices", "cluster.accelerator", "no NVIDIA device answers on this host", fix)
    if (
        config.cluster.accelerator is Accelerator.cuda
        and 0 < found < config.cluster.devices_per_host
        and not config.cluster.hostfile
    ):
        message = f"{config.cluster.devices_per_host} devices are configured, this host has {found}"
        yield error("devices", "cluster.devices_per_host", message, f"cluster.devices_per_host={found}")
    if machine.shared_memory_bytes < GIB // 4:
        message = f"/dev/shm has {format_bytes(machine.shared_memory_bytes)} free; ranks die with SIGBUS when it is full"
        yield warning("shared-memory", "/dev/shm", message, "start the container with --shm-size=1g or more")


def _build_locks(machine: Machine) -> Iterator[Finding]:
    for path, age in machine.build_locks.items():
        message = f"{path} is {age / 60:.0f} min old; DeepSpeed waits for ever for the build it stands for"
        if age > _STALE_SECONDS:
            yield error("build-lock", "TORCH_EXTENSIONS_DIR", message, f"if no build is running: rm {path}")
        else:
            yield warning("build-lock", "TORCH_EXTENSIONS_DIR", message, f"wait for the build, or if it was killed: rm {path}")


def _ops(machine: Machine, config: RunConfig) -> Iterator[Finding]:
    missing = [name for name in needed_operators(config) if not machine.built_ops[name]]
    if not missing:
        return
    names = ", ".join(missing)
    needed = [("g++", "g++"), ("ninja", "ninja-build"), *([("libaio", "libaio-dev")] if "async_io" in missing else [])]
    for tool, package in needed:
        if machine.tools[tool] is None:
            message = f"{names} must be compiled and {tool} is missing"
            yield error("compiler", tool, message, f"apt-get install {package} (or your system's package of it)")
    yield info(
        "ops",
        "TORCH_EXTENSIONS_DIR",
        f"not built yet: {names}",
        "nothing to do: the first start compiles them, about a minute each, async_io several",
    )


def _launcher(machine: Machine, config: RunConfig) -> Iterator[Finding]:
    several = config.cluster.hosts > 1 or config.cluster.hostfile is not None
    if several and config.launcher.backend is not LauncherBackend.local:
        for tool in ("pdsh", "ssh"):
            if machine.tools[tool] is None:
                message = f"several hosts are reached through {tool}, which is missing"
                yield error(
                    "launcher", "launcher.backend", message, f"apt-get install {'pdsh' if tool == 'pdsh' else 'openssh-client'}"
                )
