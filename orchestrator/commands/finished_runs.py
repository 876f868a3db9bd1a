"""Finished runs as ``calibrate`` reads them: what a step did, on what, and how long the steady steps took."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.commands.planned import hosts_of
from orchestrator.config.enums import AttentionImplementation
from orchestrator.config.load import run_config_from_dict, shell_word
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.launch.command import HOSTFILE
from orchestrator.launch.machine import memory_limit_bytes
from orchestrator.planning.calibration.fit import MeasuredStep
from orchestrator.planning.cluster_spec import ClusterSpec, cluster_spec_from_config
from orchestrator.planning.cost.training_step import training_step
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.model_spec import model_spec_from_hf
from orchestrator.planning.parameter_names import trainable_shares
from orchestrator.planning.partition import EXPLICIT, partition_layers, stages_per_rank
from orchestrator.run_dir import METRICS, Attempt, newest_finished, read_json
from orchestrator.steady import FIRST_STEPS, steady_entries

LEAST_STEADY = 3
RULE = "calibrate-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """An attempt that ended well."""

    path: Path
    config: RunConfig
    stack: Mapping[str, Any]
    """Device, threads, torch and DeepSpeed as the worker saw them; empty in runs of older versions."""
    measured: MeasuredStep

    @property
    def cluster(self) -> ClusterSpec:
        """What it ran on, as it was configured."""
        return self.measured.step.cluster

    @property
    def hardware(self) -> tuple[str, ...]:
        """What may not differ between runs that are fitted together."""
        names = ("device", "torch", "deepspeed")
        return (self.cluster.accelerator.value, self.cluster.device_name, *(str(self.stack.get(name, "")) for name in names))


def read_runs(names: Sequence[str]) -> list[FinishedRun]:
    """The runs in these directories; one that is named twice counts once.

    Raises:
        ConfigurationError: with everything that is wrong with any of them.
    """
    runs: list[FinishedRun] = []
    findings: list[Finding] = []
    paths: dict[str, Path] = {}
    for name in names:
        path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's raises for unknown users
        paths.setdefault(os.path.realpath(path), path)
    for path in paths.values():
        try:
            runs.append(read_run(path))
        except ConfigurationError as problem:
            findings += problem.findings
    findings += _mixed(runs)
    if findings:
        raise ConfigurationError(findings)
    return runs


def read_run(path: Path) -> FinishedRun:
    """The newest attempt in ``path`` that ended well.

    Raises:
        ConfigurationError: there is none, or it cannot be used.
    """
    if not (path / "request" / "config.json").is_file():
        raise _refused(f"{path} holds no run", "name the directories of finished runs: orchestrator calibrate RUN...")
    attempt = newest_finished(path)
    if attempt is None:
        fix = f"let it end: orchestrator launch {shell_word('run_dir', path)} checkpoint.resume=true, or leave it out"
        raise _refused(f"{path}: no attempt has ended well yet", fix)
    try:
        return _finished_run(path, attempt)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _refused(f"{attempt.path} is damaged: {problem}", "restore its files, or leave the run out") from None


def steady_seconds(attempt: Attempt, log_every: int) -> np.ndarray:
    """Seconds of the steps of an attempt but its first; an entry stands for ``log_every`` steps. Skipped steps are left out."""
    entries = [json.loads(line) for line in (attempt.path / METRICS).read_text(encoding="utf-8").splitlines()]
    return np.array([entry["step_seconds"] for entry in steady_entries(entries, log_every)])


def _finished_run(path: Path, attempt: Attempt) -> FinishedRun:
    config = run_config_from_dict(read_json(attempt.path / "config.json"))
    assert attempt.result is not None
    seconds = steady_seconds(attempt, config.training.log_every)
    if len(seconds) < LEAST_STEADY:
        needed = config.training.log_every * LEAST_STEADY + FIRST_STEPS
        message = (
            f"{attempt.path / METRICS} has {len(seconds)} entries after the first {FIRST_STEPS} steps, too few for a median"
        )
        raise _refused(message, f"train at least {needed} steps (training.max_steps={needed}), or leave the run out")
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ValueError(f"{METRICS} has steps that took no time, or none that is a number")
    median = float(np.median(seconds))
    deviation = 1.4826 * float(np.median(np.abs(seconds - median))) / median
    measured = _measured_step(str(path), attempt, config, median, deviation / float(np.sqrt(len(seconds))))
    stack = dict(attempt.result.get("stack") or {})
    stack |= {name: int(stack[name]) for name in ("threads", "cores") if name in stack}
    return FinishedRun(path=path, config=config, stack=stack, measured=measured)


def _measured_step(name: str, attempt: Attempt, config: RunConfig, seconds: float, relative_error: float) -> MeasuredStep:
    """The step as it was planned when the attempt began: the user's own files may have changed since."""
    plan, model = read_json(attempt.path / "plan.json"), read_json(attempt.path / "model.json")
    spec = model_spec_from_hf(
        model["hf_config"],
        name=model["name"],
        attention_implementation=AttentionImplementation(model["attention_implementation"]),
        dropout=model["dropout"],
    )
    layout = ParallelLayout.from_dict(plan["layout"])
    estimator = Estimator(
        config=config,
        spec=spec,
        cluster=_cluster(attempt, config),
        layout=layout,
        settings=resolve_settings(config),
        trainable_shares=trainable_shares(spec, config.training.freeze) if config.training.freeze else None,
    )
    partition = partition_layers(
        spec,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        method=EXPLICIT,
        boundaries=plan["partition"]["boundaries"],
        stages_per_rank=stages_per_rank(config.parallelism.schedule, layout.pipeline_parallel_size),
    )
    step = training_step(estimator)
    return MeasuredStep(name=name, step=step, partition=partition, seconds=seconds, relative_error=relative_error)


def _cluster(attempt: Attempt, config: RunConfig) -> ClusterSpec:
    frozen = attempt.path / HOSTFILE
    described = replace(config.cluster, hostfile=str(frozen) if frozen.is_file() else None)
    hosts, findings = hosts_of(replace(config, cluster=described))
    cluster, problems = cluster_spec_from_config(described, hosts=hosts, machine_memory_bytes=memory_limit_bytes())
    if cluster is None:
        raise ConfigurationError([*findings, *problems])
    return cluster


def _mixed(runs: Sequence[FinishedRun]) -> Iterator[Finding]:
    """Runs on other hardware, or with other software, than the first."""
    for run in runs[1:]:
        differing = [
            f"{ours or 'unknown'} and {theirs or 'unknown'}"
            for ours, theirs in zip(runs[0].hardware, run.hardware, strict=True)
            if ours != theirs
        ]
        if differing:
            message = f"{runs[0].path} and {run.path} ran on different hardware or software: {'; '.join(differing)}"
            yield error("calibrate-mixed", "command", message, "calibrate each kind by itself, with its own calibration.name")


def _refused(message: str, fix: str) -> ConfigurationError:
    return ConfigurationError([error(RULE, "command", message, fix)])
