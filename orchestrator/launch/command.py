"""DeepSpeed's launcher for one attempt: its options on every backend. Workers get one argument, the attempt's directory."""

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
from orchestrator.launch.environment import sent_variables, worker_environment
from orchestrator.launch.host_filter import filter_text
from orchestrator.launch.machine import scripts_dir
from orchestrator.launch.pdsh import WORKER_ENVIRONMENT, pdsh_environment
from orchestrator.launch.ports import free_port
from orchestrator.launch.slurm.script import slurm_findings
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.transport import is_this_machine, python_path
from orchestrator.planning.cluster_spec import ClusterSpec

HOSTFILE = "hostfile"
OUR_TRAINING = "orchestrator.worker.start"
OWN_SCRIPT = "orchestrator.worker.script"
_DEFAULT_HOSTFILE = Path("/job/hostfile")


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


def launch_spec(
    config: RunConfig,
    cluster: ClusterSpec,
    attempt_path: Path,
    *,
    working_directory: Path,
    master_addr: str | None = None,
    swap_directory: str | None = None,
) -> LaunchSpec:
    """Decide how the workers of ``attempt_path`` are started on the hosts of ``cluster``.

    ``master_addr`` is an address of the first host that all others reach, where one was found; the configuration's own comes
    first, and the first host's name last. On several hosts the working directory is the attempt's, which all of them have.
    """
    backend = resolved_backend(config, cluster)
    is_local = backend is LauncherBackend.local
    launcher = config.launcher
    address = launcher.master_addr or master_addr or cluster.hosts[0].name
    if is_local:
        options = _local_options(config, cluster, attempt_path)
    else:
        options = _several_options(cluster, attempt_path, address, over_pdsh=backend is LauncherBackend.pdsh)
    environment = worker_environment(config, cluster)
    if not is_local:
        environment = {**sent_variables(), **_python_path(), **environment}
    if backend is LauncherBackend.pdsh:
        environment |= pdsh_environment(launcher)
    return LaunchSpec(
        backend=backend,
        hosts=tuple(host.name for host in cluster.hosts),
        launcher=(deepspeed_script(), *options),
        worker=("--no_local_rank", "--module", OWN_SCRIPT if config.training.script else OUR_TRAINING, str(attempt_path)),
        master_port=launcher.master_port or (free_port() if is_local else None),
        environment=environment,
        working_directory=str(working_directory if is_local else attempt_path),
        setup=tuple(launcher.setup),
        ssh_arguments=tuple(launcher.ssh_arguments),
        connect_seconds=launcher.connect_seconds,
        stop_seconds=launcher.stop_seconds,
        hang_timeout=launcher.hang_timeout,
        save_on_stop=config.checkpoint.save_on_stop,
        swap_directory=swap_directory,
        swap_owner=config.run_dir,
    )


def deepspeed_script() -> str:
    """DeepSpeed's launcher: beside this Python, or wherever the shell finds it."""
    beside = scripts_dir() / "deepspeed"
    return str(beside) if beside.is_file() else shutil.which("deepspeed") or str(beside)


def host_findings(config: RunConfig, cluster: ClusterSpec) -> Iterator[Finding]:
    """What of the hosts can be planned but not started."""
    several = len(cluster.hosts) > 1
    if config.launcher.backend is LauncherBackend.slurm:
        yield from slurm_findings(config)
    elif several and config.cluster.hostfile is None:
        message = f"{len(cluster.hosts)} hosts are to be started, and nothing says what they are called"
        yield error(
            "launch-hosts", "cluster.hostfile", message, "name them in a hostfile: cluster.hostfile=FILE (see hostfile.example)"
        )
    if several and config.launcher.backend is LauncherBackend.local:
        message = f"the local backend starts this host only, and {len(cluster.hosts)} are configured"
        yield error("launch-backend", "launcher.backend", message, "launcher=ssh")
    if config.cluster.accelerator is Accelerator.cuda and resolved_backend(config, cluster) is LauncherBackend.local:
        yield from _visible_findings(max(cluster.hosts[0].device_numbers) + 1)


def _visible_findings(slots: int) -> Iterator[Finding]:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if any(not name.strip().isdigit() for name in visible):
        message = f"CUDA_VISIBLE_DEVICES={','.join(visible)}: DeepSpeed's launcher takes device numbers only"
        yield error("visible-devices", "CUDA_VISIBLE_DEVICES", message, "export the numbers that nvidia-smi shows, or unset it")
    elif visible and len(visible) < slots:
        message = f"CUDA_VISIBLE_DEVICES shows {len(visible)} devices, {slots} are configured"
        yield error("visible-devices", "CUDA_VISIBLE_DEVICES", message, f"cluster.devices_per_host={len(visible)}, or unset it")


def resolved_backend(config: RunConfig, cluster: ClusterSpec) -> LauncherBackend:
    """The backend that is meant: local for this machine alone, ssh for several hosts, or one that is another machine."""
    if config.launcher.backend is not LauncherBackend.auto:
        return config.launcher.backend
    alone = len(cluster.hosts) == 1 and is_this_machine(cluster.hosts[0].name)
    return LauncherBackend.local if alone else LauncherBackend.ssh


def _local_options(config: RunConfig, cluster: ClusterSpec, attempt_path: Path) -> list[str]:
    slots = cluster.hosts[0].slots
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    options: list[str] = []
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


def _several_options(cluster: ClusterSpec, attempt_path: Path, master_addr: str, *, over_pdsh: bool) -> list[str]:
    include = filter_text(cluster.hosts)
    # DeepSpeed's own check of the first host calls ssh without the user's arguments
    pdsh = ["--launcher=pdsh", "--force_multi", "--no_ssh_check", f"--venv_script={attempt_path / WORKER_ENVIRONMENT}"]
    return [
        f"--hostfile={attempt_path / HOSTFILE}",
        *([f"--include={include}"] if include else []),
        *(pdsh if over_pdsh else ["--no_ssh"]),
        f"--master_addr={master_addr}",
    ]


def _python_path() -> dict[str, str]:
    path = python_path()
    return {"PYTHONPATH": path} if path else {}


def hostfile_text(cluster: ClusterSpec) -> str:
    """The cluster as a DeepSpeed hostfile. Slots count from device 0, those that a filter leaves out included."""
    return "".join(f"{host.name} slots={max(host.device_numbers) + 1}\n" for host in cluster.hosts)
