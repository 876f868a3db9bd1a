"""The DeepSpeed launcher's command line for one attempt. Workers get one argument, the attempt's directory."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.enums import Accelerator, LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error
from orchestrator.launch.host_filter import filter_text
from orchestrator.launch.machine import free_port, is_this_machine, scripts_dir
from orchestrator.planning.cluster_spec import ClusterSpec

HOSTFILE = "hostfile"
ENVIRONMENT_FILE = "deepspeed_env"
_DEFAULT_HOSTFILE = Path("/job/hostfile")
_DEFAULT_PORT = 29500
_SENT_TO_HOSTS = ("TORCH_EXTENSIONS_DIR", "HF_HOME", "HF_HUB_OFFLINE", "WANDB_MODE", "WANDB_BASE_URL", "XDG_CACHE_HOME")
"""Variables of this process that workers on other hosts need as well. Never keys: the file is passed on by command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """What is executed, with what is added to the environment, and where."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: Path

    def shell(self) -> str:
        """The same as one line for a shell, to be pasted anywhere."""
        assignments = [f"{name}={value}" for name, value in self.environment.items()]
        return f"cd {shlex.quote(str(self.working_directory))} && {shlex.join(['env', *assignments, *self.argv])}"


def launch_command(config: RunConfig, cluster: ClusterSpec, attempt_path: Path, *, working_directory: Path) -> LaunchCommand:
    """Build the command that trains in ``attempt_path`` on the hosts of ``cluster``.

    Through pdsh the working directory, which every host must have, is the attempt's, and the workers' environment is what
    ``environment_file`` has: DeepSpeed passes little else on.
    """
    over_pdsh = uses_pdsh(config, cluster)
    environment = _environment(config, cluster)
    if over_pdsh:
        environment["DS_ENV_FILE"] = str(attempt_path / ENVIRONMENT_FILE)
    options = _pdsh_options(config, cluster, attempt_path) if over_pdsh else _local_options(config, cluster, attempt_path)
    worker = ["--no_local_rank", "--module", "orchestrator.worker.train", str(attempt_path)]
    return LaunchCommand(
        argv=(deepspeed_script(), *options, *worker),
        environment=environment,
        working_directory=attempt_path if over_pdsh else working_directory,
    )


def environment_text(config: RunConfig, cluster: ClusterSpec) -> str:
    """The workers' variables as DeepSpeed reads them for other hosts: ``NAME=VALUE`` lines and nothing else."""
    sent = {name: os.environ[name] for name in _SENT_TO_HOSTS if name in os.environ}
    return "".join(f"{name}={value}\n" for name, value in (sent | _environment(config, cluster)).items())


def deepspeed_script() -> str:
    """DeepSpeed's launcher: beside this Python, or wherever the shell finds it."""
    beside = scripts_dir() / "deepspeed"
    return str(beside) if beside.is_file() else shutil.which("deepspeed") or str(beside)


def host_findings(config: RunConfig, cluster: ClusterSpec) -> Iterator[Finding]:
    """What of the hosts can be planned but not started."""
    several = len(cluster.hosts) > 1
    if several and config.cluster.hostfile is None:
        message = f"{len(cluster.hosts)} hosts are to be started, and nothing says what they are called"
        yield error(
            "launch-hosts", "cluster.hostfile", message, "name them in a hostfile: cluster.hostfile=FILE (see hostfile.example)"
        )
    if several and config.launcher.backend is LauncherBackend.local:
        message = f"the local backend starts this host only, and {len(cluster.hosts)} are configured"
        yield error("launch-backend", "launcher.backend", message, "launcher.backend=pdsh")
    if config.cluster.accelerator is Accelerator.cuda and not uses_pdsh(config, cluster):
        yield from _visible_findings(max(cluster.hosts[0].device_numbers) + 1)


def _visible_findings(slots: int) -> Iterator[Finding]:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if any(not name.strip().isdigit() for name in visible):
        message = f"CUDA_VISIBLE_DEVICES={','.join(visible)}: DeepSpeed's launcher takes device numbers only"
        yield error("visible-devices", "CUDA_VISIBLE_DEVICES", message, "export the numbers that nvidia-smi shows, or unset it")
    elif visible and len(visible) < slots:
        message = f"CUDA_VISIBLE_DEVICES shows {len(visible)} devices, {slots} are configured"
        yield error("visible-devices", "CUDA_VISIBLE_DEVICES", message, f"cluster.devices_per_host={len(visible)}, or unset it")


def uses_pdsh(config: RunConfig, cluster: ClusterSpec) -> bool:
    """Whether the hosts are reached through pdsh: several, or one that is not this machine."""
    if config.launcher.backend is LauncherBackend.auto:
        return len(cluster.hosts) > 1 or not is_this_machine(cluster.hosts[0].name)
    return config.launcher.backend is LauncherBackend.pdsh


def _local_options(config: RunConfig, cluster: ClusterSpec, attempt_path: Path) -> list[str]:
    port = config.launcher.master_port or free_port()
    slots = cluster.hosts[0].slots
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    options = [f"--master_port={port}"]
    if _DEFAULT_HOSTFILE.exists():
        # DeepSpeed reads this file unasked, and would leave this host for those it names
        options.append(f"--hostfile={attempt_path / 'no-hostfile'}")
    host = cluster.hosts[0]
    if config.cluster.accelerator is Accelerator.cuda and visible:
        # with --num_gpus DeepSpeed drops the variable and takes devices from 0 up
        shown = visible.split(",")
        return [*options, "--include", "localhost:" + ",".join(shown[number] for number in host.device_numbers)]
    if config.cluster.accelerator is Accelerator.cuda and host.devices is not None:
        return [*options, "--include", f"localhost:{','.join(map(str, host.devices))}"]
    return [*options, f"--num_gpus={slots}"]


def _pdsh_options(config: RunConfig, cluster: ClusterSpec, attempt_path: Path) -> list[str]:
    include = filter_text(cluster.hosts)
    return [
        f"--hostfile={attempt_path / HOSTFILE}",
        *([f"--include={include}"] if include else []),
        "--launcher=pdsh",
        "--force_multi",
        f"--master_addr={config.launcher.master_addr or cluster.hosts[0].name}",
        f"--master_port={config.launcher.master_port or _DEFAULT_PORT}",
    ]


def hostfile_text(cluster: ClusterSpec) -> str:
    """The cluster as a DeepSpeed hostfile. Slots count from device 0, those that a filter leaves out included."""
    return "".join(f"{host.name} slots={max(host.device_numbers) + 1}\n" for host in cluster.hosts)


def _environment(config: RunConfig, cluster: ClusterSpec) -> dict[str, str]:
    # torch's extension builder looks for ninja on PATH, and an environment that is not activated has it elsewhere
    environment = {"PATH": f"{scripts_dir()}:{os.environ.get('PATH', os.defpath)}"}
    if config.cluster.accelerator is Accelerator.cpu:
        threads = max(1, len(os.sched_getaffinity(0)) // max(host.slots for host in cluster.hosts))
        environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    return environment | config.launcher.environment
