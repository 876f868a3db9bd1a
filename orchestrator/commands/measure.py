"""``calibrate measure=true``: processes that have torch measure this host, one a device, started by DeepSpeed's launcher."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.commands.result import HOST_NOT_READY, INTERRUPTED, RUN_FAILED, CommandResult
from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import ClusterConfig, RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.command import LaunchCommand, deepspeed_script
from orchestrator.launch.machine import scripts_dir
from orchestrator.launch.ports import free_port
from orchestrator.launch.preflight.host_check import check_machine
from orchestrator.launch.processes import Ended, meaning, supervise
from orchestrator.planning.calibration.measured import all_reduce_of, measured_cluster
from orchestrator.planning.calibration.preset import preset_values
from orchestrator.planning.cluster_spec import Host
from orchestrator.report import text
from orchestrator.run_dir import RESULT, read_json, write_json
from orchestrator.units import GIB, format_bytes, format_count

WORKER = "orchestrator.worker.measure"
LOG = "measure.log"
DISK_BYTES = "256M"
DISK_TIMEOUT = 300.0
RULE = "calibrate-measure"
_SPEED = re.compile(r"Task (Read|Write) Speed = ([0-9.eE+-]+) GB/sec")
"""What ds_io prints, in GiB although it says GB."""
Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured, and the cluster that follows from it."""

    cluster: ClusterConfig
    figures: Mapping[str, Any]

    @property
    def stack(self) -> Mapping[str, Any]:
        """Device, torch and DeepSpeed."""
        stack: Mapping[str, Any] = self.figures["stack"]
        return stack

    @property
    def preset(self) -> dict[str, Any]:
        """The values of the preset."""
        return preset_values(self.cluster)

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """The figures for people: what, of which size, and how fast."""
        return list(_rows(self.figures))

    def to_dict(self) -> dict[str, Any]:
        """``measured`` of ``output=json``."""
        return dict(self.figures)


def measure(config: RunConfig, echo: Echo) -> Measurement | CommandResult:
    """Measure this host with as many processes as ``config.cluster`` has devices; a result says why that failed.

    Raises:
        ConfigurationError: the cluster is more than this host, or the NVMe folder is not there.
    """
    _require_this_host(config)
    check = check_machine(config, Host(name="localhost", slots=config.cluster.devices_per_host))
    if not check.is_ready:
        payload = {"verdict": "host not ready", "findings": [finding.to_dict() for finding in check.findings]}
        return CommandResult(exit_code=HOST_NOT_READY, payload=payload, text=text.findings_report(check.findings))
    scratch = Path(tempfile.mkdtemp(prefix="orchestrator-measure-"))
    request = scratch / "request.json"
    write_json(request, {"precisions": [precision.value for precision in config.cluster.precisions]})
    outcome = supervise(_command(config, request), log_file=scratch / LOG, echo=echo, stop_seconds=config.launcher.stop_seconds)
    if outcome.interrupted or outcome.exit_code != 0 or not (scratch / RESULT).exists():
        return _failed(outcome, scratch)
    figures = read_json(scratch / RESULT)
    shutil.rmtree(scratch, ignore_errors=True)
    if config.offload.nvme_path is not None:
        echo("measuring the NVMe disk with ds_io")
        figures |= _disk(Path(config.offload.nvme_path), processes=config.cluster.devices_per_host)
    return Measurement(
        cluster=measured_cluster(config.cluster, figures, cores_per_host=_cores(config, figures)), figures=figures
    )


def _require_this_host(config: RunConfig) -> None:
    findings = []
    if config.cluster.hosts != 1 or config.cluster.hostfile is not None:
        message = "measure=true measures the host that it is started on, and the cluster has others"
        fix = "set cluster.hosts=1 cluster.hostfile=null, and give cluster.network_gbps; finished runs calibrate the network"
        findings.append(error(RULE, "cluster.hosts", message, fix))
    path = config.offload.nvme_path
    if path is not None and not (Path(path).is_dir() and os.access(path, os.W_OK)):
        message = f"{path} is not a folder that can be written to"
        findings.append(error(RULE, "offload.nvme_path", message, "name a folder on the disk, or null to leave it out"))
    if findings:
        raise ConfigurationError(findings)


def _command(config: RunConfig, request: Path) -> LaunchCommand:
    """DeepSpeed's launcher with one process a device, with the threads that ``launch`` would give them."""
    environment = {"PATH": f"{scripts_dir()}:{os.environ.get('PATH', os.defpath)}"}
    slots = config.cluster.devices_per_host
    if config.cluster.accelerator is Accelerator.cpu:
        threads = str(max(1, len(os.sched_getaffinity(0)) // slots))
        environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    options = (f"--num_gpus={slots}", f"--master_port={free_port()}", f"--hostfile={request.parent / 'no-hostfile'}")
    argv = (deepspeed_script(), *options, "--no_local_rank", "--module", WORKER, str(request))
    return LaunchCommand(argv=argv, environment=environment, working_directory=Path.cwd())


def _cores(config: RunConfig, figures: Mapping[str, Any]) -> int | None:
    """The cores that processes share, if launch gives out the threads and the environment does not."""
    if config.cluster.accelerator is not Accelerator.cpu or "OMP_NUM_THREADS" in os.environ:
        return None
    return int(figures["stack"]["cores"])


def _disk(folder: Path, *, processes: int) -> dict[str, Any]:
    """What all processes together write and read, bytes a second; None with a reason where ds_io does not run."""
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix="orchestrator-measure-"))
    command = [str(scripts_dir() / "ds_io"), "--folder", str(scratch), "--io_size", DISK_BYTES]
    command += ["--multi_process", str(processes), "--loops", "3"]
    figures: dict[str, Any] = {}
    try:
        for name, words in (("nvme_write", []), ("nvme_read", ["--read"])):
            environment = {**os.environ, "PATH": f"{scripts_dir()}:{os.environ.get('PATH', os.defpath)}"}
            ended = subprocess.run(
                [*command, *words], env=environment, capture_output=True, text=True, timeout=DISK_TIMEOUT, check=False
            )
            found = _SPEED.search(ended.stdout)
            figures[name] = None if found is None else float(found[2]) * GIB
            if found is None:
                figures["nvme_missing"] = f"ds_io ended with exit code {ended.returncode}: {_last_line(ended.stderr)}"
    except (OSError, subprocess.TimeoutExpired) as problem:
        figures["nvme_missing"] = f"ds_io: {problem}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return figures


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _failed(outcome: Ended, scratch: Path) -> CommandResult:
    log = scratch / LOG
    if outcome.interrupted:
        return CommandResult(exit_code=INTERRUPTED, payload={"status": "interrupted"}, text=[Text("interrupted")])
    failures = [read_json(path) for path in sorted(scratch.glob("failure_rank_*.json"))]
    reason = failures[0]["error"] if failures else meaning(outcome.exit_code)
    payload = {"status": "failed", "reason": reason, "exit_code": outcome.exit_code, "log": str(log)}
    report = [Text.assemble(("the measurement failed: ", "bold red"), str(reason)), Text(f"log: {log}")]
    return CommandResult(exit_code=RUN_FAILED, payload=payload, text=report)


def _rows(figures: Mapping[str, Any]) -> Any:
    for precision, rates in figures["products"].items():
        for width, rate in rates.items():
            yield f"matrix product, {precision}", f"{width} x {width} x {width}", f"{rate / 1e12:.3g} TFLOP/s"
    yield "memory, copy", "", f"{figures['memory_bandwidth'] / 1e9:.3g} GB/s"
    yield "launch of an operation", "", f"{1e6 * figures['launch_seconds']:.3g} us"
    if figures["host_link_bandwidth"] is not None:
        yield "copy from host to device", "", f"{figures['host_link_bandwidth'] / 1e9:.3g} GB/s"
    for entry in figures["all_reduce"]:
        of = f"{entry['ranks']} ranks, {format_bytes(entry['bytes'])}"
        yield "all-reduce", of, f"{1e6 * entry['seconds']:.4g} us"
    reduced = all_reduce_of(figures["all_reduce"])
    if reduced is not None:
        yield "all-reduce, sent by each", f"{reduced.ranks} ranks", f"{reduced.bandwidth / 1e9:.3g} GB/s"
    adam = figures["host_adam"]
    yield "CPU Adam of the host", "", figures["host_adam_missing"] if adam is None else f"{format_count(adam)} parameters/s"
    for name in ("nvme_read", "nvme_write"):
        if figures.get(name) is not None:
            yield name.replace("_", " "), "", f"{figures[name] / 1e9:.3g} GB/s"
    if "nvme_missing" in figures:
        yield "NVMe", "", figures["nvme_missing"]
