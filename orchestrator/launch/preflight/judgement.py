"""What a host lacks to take part in a run, judged from the facts of its probe: findings that speak of one host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from orchestrator.config.enums import Accelerator, AttentionImplementation, LauncherBackend, PipelineSchedule
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.operators import needed_operators
from orchestrator.findings import Finding, error, info, warning
from orchestrator.launch.preflight.facts import FLASH_ATTENTION, PACKAGES, TENSORBOARD, Device, Folder, HostFacts
from orchestrator.launch.transport import is_this_machine
from orchestrator.planning.cluster_spec import ClusterSpec, Host
from orchestrator.units import GIB, format_bytes

_STALE_SECONDS = 900.0
_CLOCK_SECONDS = 2.0
_DUAL_PIPE_V_SINCE = Version("0.19.8")
_NO_LOCAL_DISK = {
    **dict.fromkeys(("tmpfs", "ramfs"), "RAM"),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs"), "a network disk"),
}
"""File systems that are no local disk, and what they are instead."""
NVME_PATH = "offload.nvme_path"


def machine_findings(facts: HostFacts, config: RunConfig, host: Host, *, world_size: int) -> list[Finding]:
    """What ``host`` lacks for the accelerator, offload and packages of ``config``, whatever run it is."""
    return [
        *_unknown(facts, config),
        *_packages(facts),
        *_features(facts, config),
        *_devices(facts, config, host),
        *_limits(facts, world_size),
        *_build_locks(facts),
        *_operators(facts, config),
    ]


def run_findings(facts: HostFacts, *, checkpoint_bytes: int) -> list[Finding]:
    """What stands in the way of this run on one host: files it does not have, disks without room, a clock that is off."""
    return [*_files(facts), *_folders(facts, checkpoint_bytes), *_swap_folder(facts), *_clock(facts)]


def port_findings(facts: HostFacts, config: RunConfig) -> list[Finding]:
    """Whether the first host can listen on the rendezvous port."""
    if facts.port_is_free is not False:
        return []
    message = f"port {config.launcher.master_port} of this host is taken"
    fix = "stop the other job, choose another port, or leave it null for a free one"
    return [error("master-port", "launcher.master_port", message, fix)]


def launcher_findings(config: RunConfig, cluster: ClusterSpec) -> list[Finding]:
    """Programs that this machine lacks to reach other hosts."""
    backend = config.launcher.backend
    if backend in (LauncherBackend.local, LauncherBackend.slurm) or all(is_this_machine(host.name) for host in cluster.hosts):
        return []
    packages = {"ssh": "openssh-client", **({"pdsh": "pdsh"} if backend is LauncherBackend.pdsh else {})}
    return [
        error(
            "launcher",
            "launcher.backend",
            f"the hosts are reached through {tool}, which is missing here",
            f"apt-get install {package}",
        )
        for tool, package in packages.items()
        if shutil.which(tool) is None
    ]


def _unknown(facts: HostFacts, config: RunConfig) -> Iterator[Finding]:
    for fact, reason in facts.unknown.items():
        message = f"{fact.replace('_', ' ')} could not be found out: {reason}"
        if fact == "accelerators" and config.cluster.accelerator is Accelerator.cuda:
            yield error("devices", "cluster.accelerator", message, "nvidia-smi must work on this host: look at its driver")
        else:
            yield warning(
                "unknown-fact", "preflight", message, "nothing, if the host is as you think; else look at what was said"
            )


def _packages(facts: HostFacts) -> Iterator[Finding]:
    needed = {requirement.name: requirement for requirement in _train_requirements()}
    if facts.packages is None:
        return
    for name in PACKAGES:
        installed, requirement = facts.packages.get(name), needed[name]
        if installed is None:
            yield error("package", name, f"{name} is not installed", "pip install 'orchestrator[train]'")
        elif not requirement.specifier.contains(installed, prereleases=True):
            message = f"{name} {installed} is not a supported version"
            yield error("package", name, message, f"pip install '{name}{requirement.specifier}'")
    if facts.project is None and "project" not in facts.unknown:
        fix = "install it there, or share the environment and the checkout over the network"
        yield error("package", "orchestrator", "the host's Python finds no orchestrator", fix)


def _train_requirements() -> list[Requirement]:
    """The ``[train]`` extra as it was installed: one owner for the versions, ``pyproject.toml``."""
    requirements = [Requirement(text) for text in metadata.requires("orchestrator") or []]
    extra = [
        requirement for requirement in requirements if requirement.marker and requirement.marker.evaluate({"extra": "train"})
    ]
    assert {requirement.name for requirement in extra} >= set(PACKAGES)
    return extra


def _features(facts: HostFacts, config: RunConfig) -> Iterator[Finding]:
    """What the installed packages are too old for, or do not have."""
    packages = facts.packages or {}
    deepspeed = packages.get("deepspeed")
    folded = config.parallelism.schedule is PipelineSchedule.dual_pipe_v and config.parallelism.pipeline_parallel_size > 1
    if deepspeed is not None and folded and Version(deepspeed) < _DUAL_PIPE_V_SINCE:
        message = f"dual_pipe_v needs DeepSpeed {_DUAL_PIPE_V_SINCE}, and {deepspeed} is installed"
        fix = f"pip install 'deepspeed>={_DUAL_PIPE_V_SINCE}', or parallelism.schedule=one_f_one_b"
        yield error("deepspeed-version", "parallelism.schedule", message, fix)
    kernel = config.model.attention_implementation
    if kernel is AttentionImplementation.flash_attention_2 and packages.get(FLASH_ATTENTION, "unknown") is None:
        message = f"{kernel} needs the package flash-attn, which is missing"
        fix = "pip install flash-attn, or model.attention_implementation=sdpa"
        yield error("package", "model.attention_implementation", message, fix)
    if config.tracking.tensorboard and packages.get(TENSORBOARD, "unknown") is None:
        fix = "pip install 'orchestrator[tensorboard]', or tracking.tensorboard=false"
        yield error("package", "tracking.tensorboard", "event files need the package tensorboard, which is missing", fix)


def _devices(facts: HostFacts, config: RunConfig, host: Host) -> Iterator[Finding]:
    if config.cluster.accelerator is not Accelerator.cuda or facts.accelerators is None:
        return
    found = len(facts.devices)
    if not found:
        if "rocm" not in ((facts.packages or {}).get("torch") or ""):
            fix = "run on a host with GPUs, or cluster=local_cpu"
            yield error("devices", "cluster.accelerator", "no NVIDIA device answers on this host", fix)
        return
    wanted = max(host.device_numbers) + 1
    if found < wanted:
        message = f"{wanted} devices are configured, this host has {found}"
        fix = f"cluster.devices_per_host={found}, or slots={found} in the hostfile"
        yield error("devices", "cluster.devices_per_host", message, fix)
    for number in used_devices(facts, host):
        yield from _device(number, facts.devices[number])


def used_devices(facts: HostFacts, host: Host) -> list[int]:
    """Numbers of the devices that the run would use, as the driver counts them, among those that are there."""
    numbers = list(host.device_numbers)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if is_this_machine(host.name) and all(number.strip().isdigit() for number in visible):
        # the launcher takes the devices that are shown to it
        numbers = [int(visible[number]) for number in numbers if number < len(visible)]
    return [number for number in numbers if number < len(facts.devices)]


def _device(number: int, device: Device) -> Iterator[Finding]:
    field = f"device {number}"
    if device.compute_mode == "Prohibited":
        yield error("device-mode", field, "its compute mode is Prohibited: no process can use it", "nvidia-smi -c DEFAULT")
    if device.ecc_errors:
        message = f"{device.ecc_errors} uncorrected memory errors since the driver was loaded"
        yield warning("device-errors", field, message, "reset the device or leave it out (cluster.exclude); it will give more")
    if device.processes:
        named = [
            f"{process.program or 'a process'} of {process.user or 'somebody'} (pid {process.pid})"
            for process in device.processes
        ]
        message = f"others compute on it: {', '.join(named[:3])}{' and more' * (len(named) > 3)}"
        fix = "end them if they are yours, or leave the device out (cluster.exclude)"
        exclusive = (device.compute_mode or "").startswith("Exclusive")
        yield error("device-busy", field, message, fix) if exclusive else warning("device-busy", field, message, fix)


def _limits(facts: HostFacts, world_size: int) -> Iterator[Finding]:
    if facts.shared_memory_bytes is not None and facts.shared_memory_bytes < GIB // 4:
        message = f"/dev/shm has {format_bytes(facts.shared_memory_bytes)} free; ranks die with SIGBUS when it is full"
        yield warning("shared-memory", "/dev/shm", message, "start the container with --shm-size=1g or more")
    # a rank holds a connection to every other one, twice while groups are made, and its files
    needed = 2 * world_size + 256
    if facts.open_files is not None and 0 <= facts.open_files < needed:
        message = f"a process may open {facts.open_files} files, and one of {world_size} ranks needs about {needed}"
        fix = f"raise it: launcher.setup=['ulimit -n {needed}'], or nofile in /etc/security/limits.conf"
        yield warning("open-files", "ulimit -n", message, fix)


def _build_locks(facts: HostFacts) -> Iterator[Finding]:
    for path, age in (facts.operators.locks if facts.operators else {}).items():
        message = f"{path} is {age / 60:.0f} min old; DeepSpeed waits for ever for the build it stands for"
        if age > _STALE_SECONDS:
            yield error("build-lock", "TORCH_EXTENSIONS_DIR", message, f"if no build is running: rm {path}")
        else:
            yield warning("build-lock", "TORCH_EXTENSIONS_DIR", message, f"wait for the build, or if it was killed: rm {path}")


def _operators(facts: HostFacts, config: RunConfig) -> Iterator[Finding]:
    if facts.operators is None or facts.tools is None:
        return
    missing = [name for name in needed_operators(config) if not facts.operators.built[name]]
    if not missing:
        return
    names = ", ".join(missing)
    needed = [("g++", "g++"), ("ninja", "ninja-build"), *([("libaio", "libaio-dev")] if "async_io" in missing else [])]
    for tool, package in needed:
        if facts.tools[tool] is None:
            message = f"{names} must be compiled and {tool} is missing"
            yield error("compiler", tool, message, f"apt-get install {package} (or your system's package of it)")
    fix = "nothing to do: the first start compiles them, about a minute each, async_io several"
    yield info("ops", "TORCH_EXTENSIONS_DIR", f"not built yet: {names}", fix)


def _files(facts: HostFacts) -> Iterator[Finding]:
    """Files the workers will read."""
    for option, content in facts.files.items():
        if not content.exists:
            yield error("data-file", option, f"{content.path} does not exist on this host", "correct the path")
        elif not content.readable:
            yield error("data-file", option, f"{content.path} cannot be read by this user", "make it readable")


def _folders(facts: HostFacts, checkpoint_bytes: int) -> Iterator[Finding]:
    run_dir, cache_dir = facts.folders.get("run_dir"), facts.folders.get("data.cache_dir")
    if facts.shared is False:
        message = "it is another folder here than where the run is launched"
        yield error("run-directory-shared", "run_dir", message, "choose a run_dir on a disk that all hosts share")
    elif run_dir is not None and not run_dir.writable:
        message = f"{run_dir.path} cannot be written to on this host"
        yield error("run-directory-shared", "run_dir", message, "let this user write there on every host")
    elif run_dir is not None and run_dir.free_bytes < checkpoint_bytes:
        free = format_bytes(run_dir.free_bytes)
        message = f"one checkpoint takes about {format_bytes(checkpoint_bytes)}, {run_dir.path} has {free} free"
        yield error("checkpoint-disk", "run_dir", message, "choose a run_dir with room, or checkpoint=none")
    if cache_dir is not None and not cache_dir.writable:
        message = f"{cache_dir.path} cannot be written to on this host"
        yield error("data-cache", "data.cache_dir", message, "name a folder that this user may write to on every host")


def _swap_folder(facts: HostFacts) -> Iterator[Finding]:
    folder = facts.folders.get(NVME_PATH)
    if folder is None:
        return
    if not folder.writable:
        fix = "name a folder on a local disk of every host that this user may write to"
        yield error("nvme-directory", NVME_PATH, f"{folder.path} cannot be written to on this host", fix)
    elif facts.direct_io is not None:
        message = f"{folder.path} takes no direct I/O (O_DIRECT): {facts.direct_io}"
        yield error("nvme-direct-io", NVME_PATH, message, "name a folder on a local NVMe disk (ext4, xfs)")
    if folder.file_system in _NO_LOCAL_DISK:
        message = f"{folder.path} is on {folder.file_system}, which is {_NO_LOCAL_DISK[folder.file_system]} and no local disk"
        yield warning("nvme-file-system", NVME_PATH, message, "name a folder on a local NVMe disk of every host")


def _clock(facts: HostFacts) -> Iterator[Finding]:
    if facts.clock_skew is None:
        return
    low, high = facts.clock_skew
    ahead, behind = low > _CLOCK_SECONDS, high < -_CLOCK_SECONDS
    if ahead or behind:
        message = (
            f"its clock is {low if ahead else -high:.0f} s or more {'ahead of' if ahead else 'behind'} the launching host's"
        )
        fix = "let NTP set the clocks: logs and the question who failed first go by them"
        yield warning("clock-skew", "clock", message, fix)


def missing_swap_folder(folder: Folder) -> Finding:
    """The finding of a host that lacks the swap folder which others have: a disk that is not mounted there."""
    message = f"{folder.path} does not exist on this host, as it does on others"
    return error("nvme-directory", NVME_PATH, message, "mount the disk there, or make the folder on every host")
