"""``calibrate``: what finished runs, or a measurement, say of a cluster's speeds, as a preset of the group ``cluster``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.commands.cluster_preset import PresetFile, preset_file
from orchestrator.commands.finished_runs import FinishedRun, read_runs
from orchestrator.commands.measure import Measurement, measure
from orchestrator.commands.result import OK, CommandResult
from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import ClusterConfig, RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.planning.calibration.cpu import GUESSED, MEASURED, with_guessed_speeds
from orchestrator.planning.calibration.fit import Calibration, MeasuredStep, Trust, fit_constants
from orchestrator.planning.calibration.preset import calibrated_preset
from orchestrator.planning.cluster_spec import ClusterSpec, cluster_spec_from_config
from orchestrator.planning.cost.speeds import missing_facts
from orchestrator.report.calibration import calibration_report, measurement_report, preset_report

HELP = """Fit the speeds of a cluster to finished runs, or measure them on this host, and write them as a cluster preset.

Runs decide at most eight constants; what they cannot decide stays as the preset of their cluster has it. The fit needs no GPU.
A preset is used as cluster=NAME, with --config-dir.

Examples:
  orchestrator calibrate runs/first runs/second runs/third
  orchestrator calibrate runs/books calibration.name=our_h100 --config-dir conf.d
  orchestrator calibrate measure=true
  orchestrator calibrate measure=true offload.nvme_path=/local/nvme calibration.name=workstation
  orchestrator calibrate runs/a runs/b runs/c measure=true"""

Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What a fit starts from: the cluster as it is described, and how its runs see it."""

    config: ClusterConfig
    runs: tuple[MeasuredStep, ...]
    cores_per_host: int | None
    trust: Trust
    is_guess: bool

    @property
    def cluster(self) -> ClusterSpec:
        """That of the first run."""
        return self.runs[0].step.cluster


def run(config: RunConfig, names: Sequence[str], *, config_dir: Path | None, echo: Echo) -> CommandResult:
    """Calibrate on the runs ``names``, by measuring here, or both; ``echo`` receives the progress of a measurement.

    Raises:
        ConfigurationError: nothing is named, or what is named cannot be used.
    """
    if not names and not config.measure:
        message = "no run is named, and nothing is to be measured"
        raise ConfigurationError([error("calibrate-run", "command", message, "orchestrator calibrate RUN..., or measure=true")])
    runs = read_runs(names)
    described = runs[0].config.cluster if runs else config.cluster
    file = preset_file(config.calibration, described.name, config_dir)
    measurement = measure(config, echo) if config.measure else None
    if isinstance(measurement, CommandResult):
        return measurement
    if not runs:
        assert measurement is not None
        file.write(measurement.preset, measurement.stack)
        payload = {"measured": measurement.to_dict(), "preset": file.to_dict(measurement.preset)}
        return CommandResult(
            exit_code=OK, payload=payload, text=[*measurement_report(measurement.rows), *preset_report(file.path, file.usage)]
        )
    return _fitted(runs, config, file, measurement)


def _fitted(runs: Sequence[FinishedRun], config: RunConfig, file: PresetFile, measurement: Measurement | None) -> CommandResult:
    basis = _basis(runs, config.cluster if measurement is None else measurement.cluster)
    calibration = fit_constants(basis.runs, basis.trust)
    preset = calibrated_preset(basis.config, basis.cluster, calibration.factors, cores_per_host=basis.cores_per_host)
    file.write(preset, {**runs[0].stack, "runs": len(runs)})
    payload = {
        **_payload(basis, calibration),
        "measured": None if measurement is None else measurement.to_dict(),
        "preset": file.to_dict(preset),
    }
    text = [
        *([] if measurement is None else measurement_report(measurement.rows)),
        *calibration_report(basis.runs, calibration, is_guess=basis.is_guess),
        *preset_report(file.path, file.usage),
    ]
    return CommandResult(exit_code=OK, payload=payload, text=text)


def _payload(basis: _Basis, calibration: Calibration) -> dict[str, Any]:
    predictions = zip(basis.runs, calibration.predicted_before, calibration.predicted_after, strict=True)
    return {
        "runs": [
            {
                "run": run.name,
                "measured_seconds": run.seconds,
                "predicted_before_seconds": None if basis.is_guess else before,
                "predicted_after_seconds": after,
                "error_after": after / run.seconds - 1,
            }
            for run, before, after in predictions
        ],
        "constants": [
            {
                "name": fitted.constant.name,
                "before": None if basis.is_guess else fitted.before,
                "after": fitted.after if fitted.is_used else None,
                "knowledge": fitted.knowledge,
                "determined": fitted.is_determined,
            }
            for fitted in calibration.constants
        ],
    }


def _basis(runs: Sequence[FinishedRun], given: ClusterConfig) -> _Basis:
    """What is known of the cluster before the fit: its own facts; of a CPU those of ``given``, else a guess.

    Raises:
        ConfigurationError: the cluster lacks facts that cannot be guessed.
    """
    config = runs[0].config.cluster
    lacking = [missing_facts(run.cluster, run.measured.step.settings.dtype) for run in runs]
    is_cpu = config.accelerator is Accelerator.cpu
    trust = MEASURED if is_cpu else Trust()
    if not any(lacking):
        return _Basis(
            config=config,
            runs=tuple(run.measured for run in runs),
            cores_per_host=config.cores_per_host,
            trust=trust,
            is_guess=False,
        )
    if not is_cpu:
        message = next(reason for reason in lacking if reason)
        fix = "give the labels of the device in the preset that the runs use (cluster.*), then run and calibrate again"
        raise ConfigurationError([error("calibrate-facts", "cluster", message.split(";")[0], fix)])
    seen = [_as_given(run, given) for run in runs]
    if all(step is not None for step in seen):
        steps = tuple(step for step in seen if step is not None)
        return _Basis(config=given, runs=steps, cores_per_host=given.cores_per_host, trust=trust, is_guess=False)
    cores = _cores_per_host(runs)
    guessed = tuple(_with_cluster(run, with_guessed_speeds(run.cluster, _dtype(run), threads=_threads(run))) for run in runs)
    return _Basis(config=config, runs=guessed, cores_per_host=cores, trust=GUESSED, is_guess=True)


def _as_given(run: FinishedRun, given: ClusterConfig) -> MeasuredStep | None:
    """The run on the CPUs that ``given`` describes, with the hosts it really had; None if that lacks facts as well."""
    if given.accelerator is not Accelerator.cpu:
        return None
    cluster, _ = cluster_spec_from_config(given, hosts=run.cluster.hosts, machine_memory_bytes=run.cluster.host_memory_bytes)
    return None if cluster is None or missing_facts(cluster, _dtype(run)) else _with_cluster(run, cluster)


def _with_cluster(run: FinishedRun, cluster: ClusterSpec) -> MeasuredStep:
    return replace(run.measured, step=replace(run.measured.step, cluster=cluster))


def _dtype(run: FinishedRun) -> Any:
    return run.measured.step.settings.dtype


def _threads(run: FinishedRun) -> int:
    return int(run.stack.get("threads", 1))


def _cores_per_host(runs: Sequence[FinishedRun]) -> int | None:
    """The cores that processes share, if threads are given out by ``launch``; None if they are always as many.

    Raises:
        ConfigurationError: the runs had threads that follow neither rule.
    """
    cores = max(int(run.stack.get("cores", 1)) for run in runs)
    shared = all(_threads(run) == max(1, cores // run.cluster.devices_per_host) for run in runs)
    if shared and "OMP_NUM_THREADS" not in os.environ:
        return cores
    threads = sorted({_threads(run) for run in runs})
    if len(threads) == 1:
        return None
    if shared:
        message = f"processes of the runs shared {cores} cores among them, and OMP_NUM_THREADS would change that now"
        raise ConfigurationError([error("calibrate-mixed", "command", message, "unset OMP_NUM_THREADS")])
    message = f"processes of the runs had {', '.join(map(str, threads))} threads, which are not {cores} cores shared out"
    fix = "run them all with the same OMP_NUM_THREADS, or all without it"
    raise ConfigurationError([error("calibrate-mixed", "command", message, fix)])
