"""What a probe found out about one host. A fact that could not be had is ``None``; ``unknown`` says why. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PACKAGES = ("torch", "deepspeed", "transformers", "safetensors", "tokenizers", "wandb")
FLASH_ATTENTION = "flash-attn"
TENSORBOARD = "tensorboard"
TOOLS = ("g++", "ninja", "libaio", "pdsh", "ssh", "numactl")
"""Programs, and the library that NVMe offload is compiled against."""
OPERATORS = ("deepspeed_shm_comm", "cpu_adam", "cpu_lion", "cpu_adagrad", "fused_adam", "fused_lion", "async_io")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that computes on a device. Before a run starts it is always another's."""

    pid: int
    user: str | None = None
    program: str | None = None
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. ``ecc_errors``: uncorrected ones since the driver was loaded."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    compute_mode: str | None = None
    ecc_errors: int | None = None
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """The devices of a host in the order of their numbers, their driver, and the newest CUDA that it can run."""

    driver: str | None
    cuda: str | None
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """RAM of the machine, what the control groups allow of it, and what a process may still take."""

    total_bytes: int
    limit_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to write to; where it does not exist yet, the nearest above it is described."""

    path: str
    exists: bool
    writable: bool
    file_system: str | None
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file or folder to read. ``digest`` is equal where the content is."""

    path: str
    exists: bool
    readable: bool
    bytes: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """This project as a host has it."""

    version: str
    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """DeepSpeed's compiled operators in ``folder``, and locks of builds with their age in seconds."""

    folder: str
    built: Mapping[str, bool]
    locks: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts of one host."""

    hostname: str | None = None
    addresses: tuple[tuple[str, int], ...] = ()
    """IPv4 addresses with the length of their network prefix."""
    python: str | None = None
    packages: Mapping[str, str | None] | None = None
    """Versions; ``None`` for a package that is not installed."""
    project: Project | None = None
    torch_cuda: str | None = None
    """The CUDA that torch was built for."""
    accelerators: Accelerators | None = None
    num_cores: int | None = None
    memory: Memory | None = None
    shared_memory_bytes: int | None = None
    """Free bytes of /dev/shm."""
    open_files: int | None = None
    """How many files one process may hold open."""
    folders: Mapping[str, Folder] = field(default_factory=dict)
    """By the option that names the folder."""
    direct_io: str | None = None
    """Why the swap folder takes no direct I/O; ``None`` if it does."""
    files: Mapping[str, Content] = field(default_factory=dict)
    """By the option that names the file or folder."""
    shared: bool | None = None
    """Whether the host sees what the launching host wrote beside the run directory."""
    operators: Operators | None = None
    tools: Mapping[str, str | None] | None = None
    port_is_free: bool | None = None
    """Whether the rendezvous port that was asked for is free; ``None`` if none was."""
    clock_skew: tuple[float, float] | None = None
    """The clock of the host is ahead of ours by at least and at most so many seconds."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Facts that could not be had, and why."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, none where nothing is known of them."""
        return self.accelerators.devices if self.accelerators is not None else ()


def facts_from_probe(found: Mapping[str, Any], *, asked: float, received: float) -> HostFacts:
    """The facts in a probe's answer. ``asked`` and ``received`` are our clock before and after, seconds since the epoch.

    Raises:
        KeyError, TypeError: the answer is none of our probe's.
    """
    accelerators, clock = found.get("accelerators"), found.get("clock")
    return HostFacts(
        hostname=found.get("hostname"),
        addresses=tuple((entry["address"], entry["prefix"]) for entry in found.get("addresses") or ()),
        python=found.get("python"),
        packages=found.get("packages"),
        project=Project(**found["project"]) if found.get("project") else None,
        torch_cuda=found.get("torch_cuda"),
        accelerators=None if accelerators is None else _accelerators(accelerators),
        num_cores=found.get("num_cores"),
        memory=Memory(**found["memory"]) if found.get("memory") else None,
        shared_memory_bytes=found.get("shared_memory_bytes"),
        open_files=found.get("open_files"),
        folders={option: Folder(**folder) for option, folder in (found.get("folders") or {}).items()},
        direct_io=found.get("direct_io"),
        files={option: Content(**content) for option, content in (found.get("files") or {}).items()},
        shared=found.get("shared"),
        operators=Operators(**found["operators"]) if found.get("operators") else None,
        tools=found.get("tools"),
        port_is_free=found.get("port_is_free"),
        # the host looked at its clock between our two looks at ours
        clock_skew=None if clock is None else (clock["ended"] - received, clock["started"] - asked),
        unknown=found.get("unknown") or {},
    )


def _accelerators(found: Mapping[str, Any]) -> Accelerators:
    devices = tuple(
        Device(**{**entry, "processes": tuple(DeviceProcess(**process) for process in entry.get("processes", ()))})
        for entry in found["devices"]
    )
    return Accelerators(driver=found.get("driver"), cuda=found.get("cuda"), devices=devices)
