"""What this machine is: memory, devices, installed packages, tools and DeepSpeed's compiled ops. Imports none of them."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import pynvml

from orchestrator.deepspeed_config.operators import build_locks, extensions_dir, is_built

PACKAGES = ("torch", "deepspeed", "transformers", "safetensors", "tokenizers", "wandb")
TOOLS = ("g++", "ninja", "libaio", "pdsh", "ssh", "numactl")
"""Programs, and the library that NVMe offload is compiled against."""
_LIBAIO = ("/usr/include/libaio.h", "/usr/local/include/libaio.h", f"{sys.prefix}/include/libaio.h")
OPS = ("deepspeed_shm_comm", "cpu_adam", "fused_adam", "async_io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator: its name and its memory in bytes."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of the machine this process runs on. Versions and tool paths are None where absent."""

    hostname: str
    python: str
    packages: Mapping[str, str | None]
    devices: tuple[Device, ...]
    num_cores: int
    memory_bytes: int
    available_memory_bytes: int
    shared_memory_bytes: int
    tools: Mapping[str, str | None]
    extensions_dir: Path
    built_ops: Mapping[str, bool]
    build_locks: Mapping[Path, float]
    """Lock files of op builds, with their age in seconds."""


def inspect_machine() -> Machine:
    """Look at this machine. Takes milliseconds and starts no process."""
    memory = psutil.virtual_memory()
    limit = memory_limit_bytes()
    return Machine(
        hostname=socket.gethostname(),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        devices=_nvidia_devices(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=limit,
        available_memory_bytes=min(memory.available, limit),
        shared_memory_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        tools={name: _find_tool(name) for name in TOOLS},
        extensions_dir=extensions_dir(),
        built_ops={name: is_built(name) for name in OPS},
        build_locks={path: time.time() - path.stat().st_mtime for path in build_locks()},
    )


def memory_limit_bytes() -> int:
    """RAM this process may use: the machine's, or its control group's limit where that is lower."""
    limits: list[int] = [psutil.virtual_memory().total]
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def port_is_free(port: int) -> bool:
    """Whether this host can listen on ``port``."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def scripts_dir() -> Path:
    """Where the console scripts of this Python are (``deepspeed``, ``ninja``)."""
    return Path(sysconfig.get_path("scripts"))


def _find_tool(name: str) -> str | None:
    if name == "libaio":
        return next((path for path in _LIBAIO if Path(path).exists()), None)
    beside = scripts_dir() / name
    return str(beside) if beside.is_file() else shutil.which(name)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _nvidia_devices() -> tuple[Device, ...]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_nvidia_device(handle) for handle in handles)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _nvidia_device(handle: object) -> Device:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return Device(name=name if isinstance(name, str) else name.decode(), total_bytes=memory.total, free_bytes=memory.free)
