"""``preflight.collective``: a small all-reduce over all ranks, which are started as those of the run will be."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config.enums import Accelerator, LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error
from orchestrator.launch.command import HOSTFILE, hostfile_text, launch_spec
from orchestrator.launch.controller import Controller
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.status import Status
from orchestrator.launch.pdsh import WORKER_ENVIRONMENT, worker_environment_text
from orchestrator.launch.preflight.bandwidth import Bandwidths, bandwidths_of
from orchestrator.launch.spec import LaunchSpec
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.run_dir import COLLECTIVE, write_json, write_text
from orchestrator.units import MIB

_WORKER = "orchestrator.worker.collective"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCheck:
    """The bandwidths that were measured, or why there are none."""

    bandwidths: Bandwidths | None
    failure: Finding | None


def check_collective(config: RunConfig, cluster: ClusterSpec, master_addr: str | None) -> CollectiveCheck | None:
    """Reduce something over all ranks; ``None`` where one rank is alone. Nothing of it is left afterwards.

    Raises:
        KeyboardInterrupt: the user had enough.
    """
    if cluster.num_devices == 1:
        return None
    run_dir = Path(config.run_dir)
    place = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    # a folder of its own: the controller looks at the attempts beside its own
    folder = place / f".orchestrator_{secrets.token_hex(8)}"
    attempt = folder / "1"
    try:
        spec = _prepared(config, cluster, attempt, master_addr)
        outcome = Controller(attempt, spec, private={}, echo=lambda _line: None).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if outcome.status is Status.interrupted:
        raise KeyboardInterrupt
    if outcome.status is not Status.completed or outcome.result is None:
        return CollectiveCheck(bandwidths=None, failure=_failure(outcome))
    return CollectiveCheck(bandwidths=bandwidths_of(outcome.result, _names(cluster)), failure=None)


def _prepared(config: RunConfig, cluster: ClusterSpec, attempt: Path, master_addr: str | None) -> LaunchSpec:
    on_cuda = config.cluster.accelerator is Accelerator.cuda
    size, iterations = (256 * MIB, 20) if on_cuda else (4 * MIB, 5)
    write_json(attempt / COLLECTIVE, {"on_cuda": on_cuda, "bytes": size, "warmup": 2, "iterations": iterations})
    write_text(attempt / HOSTFILE, hostfile_text(cluster))
    spec = launch_spec(config, cluster, attempt, working_directory=Path.cwd(), master_addr=master_addr)
    if spec.backend is LauncherBackend.pdsh:
        write_text(attempt / WORKER_ENVIRONMENT, worker_environment_text(attempt, spec.environment, spec.setup))
    worker = ("--no_local_rank", "--module", _WORKER, str(attempt))
    return replace(spec, worker=worker, hang_timeout=0.0, save_on_stop=False, swap_owner=None)


def _names(cluster: ClusterSpec) -> Sequence[str]:
    return [host.name for host in cluster.hosts]


def _failure(outcome: Outcome) -> Finding:
    said = f": {outcome.lines[-1]}" if outcome.lines else ""
    fix = outcome.fix or "look at the network between the hosts; preflight.collective=false leaves this out"
    return error("collective", "preflight.collective", f"the all-reduce over all ranks failed: {outcome.reason}{said}", fix)
