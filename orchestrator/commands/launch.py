"""``launch``: plan, check this host, freeze the request, start DeepSpeed's launcher, watch it, and say how it ended."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.checkpoints.catalogue import newest, resume_findings
from orchestrator.commands.compile import compiled
from orchestrator.commands.planned import plan_run
from orchestrator.commands.receipt import with_receipt
from orchestrator.commands.result import HOST_NOT_READY, INTERRUPTED, OK, RUN_FAILED, CommandResult
from orchestrator.commands.validate import refusal
from orchestrator.config.load import run_config_from_dict
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.resume import fixed_options
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error, has_error
from orchestrator.launch.command import (
    ENVIRONMENT_FILE,
    HOSTFILE,
    LaunchCommand,
    environment_text,
    host_findings,
    hostfile_text,
    launch_command,
)
from orchestrator.launch.diagnosis import diagnose, end_of_log
from orchestrator.launch.machine import inspect_machine
from orchestrator.launch.preflight import machine_findings, run_findings
from orchestrator.launch.supervisor import Outcome, meaning, supervise
from orchestrator.planning.plan import Plan
from orchestrator.report import text
from orchestrator.run_dir import (
    SWAP_OWNER,
    Attempt,
    CommandWords,
    RunContents,
    checkpoint_dir,
    exclusive,
    read_json,
    require_new,
    require_usable,
    resume_run,
    start_run,
    write_json,
    write_text,
)

HELP = """Train: validate, check this host, freeze the request in run_dir, start the deepspeed launcher and follow it.

Examples:
  orchestrator launch
  orchestrator launch experiment=smoke zero=stage3
  orchestrator launch model=llama_3_1b cluster=dgx_h100 data=text data.path=/data/books run_dir=runs/books
  orchestrator launch run_dir=runs/books checkpoint.resume=true
  orchestrator launch experiment=llama_3_8b_dgx_h100 data.path=/data/books dry_run=true"""

Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLaunch:
    """A launch that may start: nothing has been written yet."""

    config: RunConfig
    words: CommandWords
    plan: Plan
    resume_tag: str | None
    remarks: Sequence[Finding]

    @property
    def run_dir(self) -> Path:
        """The directory of the run, absolute."""
        return Path(self.config.run_dir)


def prepare(config: RunConfig, words: CommandWords) -> PreparedLaunch | CommandResult:
    """Check everything that can be checked before a start; a result is a refusal.

    ``words`` made ``config``; a later resume starts from them.

    Raises:
        ConfigurationError: a resume that was asked for is impossible.
    """
    config = with_absolute_paths(config)
    require_usable(Path(config.run_dir))
    plan = plan_run(config)
    plan = plan.with_findings(list(host_findings(config, plan.cluster)) if plan.cluster else [])
    if not plan.fits:
        return refusal(config, plan)
    assert plan.model is not None
    run_dir = Path(config.run_dir)
    remarks = _host_findings(config, run_dir, plan.model.num_parameters)
    if has_error(remarks):
        payload = {"verdict": "host not ready", "findings": [finding.to_dict() for finding in remarks]}
        return CommandResult(exit_code=HOST_NOT_READY, payload=payload, text=text.findings_report(remarks))
    if not config.checkpoint.resume:
        require_new(run_dir)
        return PreparedLaunch(config=config, words=words, plan=plan, resume_tag=None, remarks=remarks)
    resume_tag, resume_remarks = _resume_tag(config, plan, run_dir)
    remarks = [*remarks, *resume_remarks]
    return PreparedLaunch(config=config, words=words, plan=plan, resume_tag=resume_tag, remarks=remarks)


def start(prepared: PreparedLaunch, echo: Echo, show: Callable[[Iterable[RenderableType]], None]) -> CommandResult:
    """Freeze the request, start the launcher and follow it to its end.

    ``show`` receives the plan and the command before the start, ``echo`` progress lines while the run goes on.
    """
    config, plan = prepared.config, prepared.plan
    with exclusive(prepared.run_dir) as lock:
        attempt = _freeze(prepared)
        command = _prepare_command(config, plan, attempt)
        show([*text.plan_report(plan), *text.findings_report(prepared.remarks)])
        show(text.command_report(command.shell(), attempt.path))
        if config.dry_run:
            return _dry_run(command, attempt)
        stop_seconds = config.launcher.stop_seconds
        outcome = supervise(command, log_file=attempt.log_file, echo=echo, stop_seconds=stop_seconds, keep_open=(lock,))
        _remove_swap_files(config)
    return _ended(outcome, attempt)


def absolute_paths(config: RunConfig) -> dict[str, str]:
    """The options that name a file or folder and are set, absolute."""
    paths = {
        "model.config_path": config.model.config_path,
        "model.pretrained": config.model.pretrained,
        "cluster.hostfile": config.cluster.hostfile,
        "offload.nvme_path": config.offload.nvme_path,
        "data.path": config.data.path,
        "data.cache_dir": config.data.cache_dir,
        "data.tokenizer_path": config.data.tokenizer_path,
    }
    return {option: str(Path(os.path.expanduser(path)).absolute()) for option, path in paths.items() if path}  # noqa: PTH111 - Path's raises for unknown users


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Workers run elsewhere and later: every path of the configuration becomes absolute."""
    config = replace(config, run_dir=str(Path(os.path.expanduser(config.run_dir)).absolute()))  # noqa: PTH111 - Path's raises for unknown users
    for option, path in absolute_paths(config).items():
        section, name = option.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: path})})
    return config


def _host_findings(config: RunConfig, run_dir: Path, num_parameters: int) -> list[Finding]:
    if not config.preflight.enabled:
        return []
    here = run_findings(config, run_dir=run_dir, num_parameters=num_parameters)
    return here if config.dry_run else [*machine_findings(inspect_machine(), config), *here]


def _resume_tag(config: RunConfig, plan: Plan, run_dir: Path) -> tuple[str, list[Finding]]:
    """The checkpoint to go on from, and what to know about it."""
    checkpoint = newest(checkpoint_dir(run_dir))
    if checkpoint is None:
        message = f"{checkpoint_dir(run_dir)} holds no complete checkpoint to go on from"
        fix = "name the run_dir of the run to go on with, or start anew in another run_dir: checkpoint.resume=false"
        raise ConfigurationError([error("resume", "checkpoint.resume", message, fix)])
    assert plan.layout is not None and plan.model is not None and plan.partition is not None
    findings = resume_findings(
        checkpoint.manifest,
        layout=plan.layout.to_dict(),
        boundaries=plan.partition.boundaries,
        fixed_options=fixed_options(config),
        zero_stage=config.zero.stage,
        dtype=config.precision.dtype,
        model_name=plan.model.name,
        num_parameters=plan.model.num_parameters,
        hf_config=plan.model.hf_config,
        max_steps=config.training.max_steps,
    )
    findings += _changed_data(config, run_dir)
    if has_error(findings):
        raise ConfigurationError(findings)
    return checkpoint.tag, findings


def _changed_data(config: RunConfig, run_dir: Path) -> list[Finding]:
    """A data position means nothing in other data, or in the same data in another order."""
    earlier = run_config_from_dict(read_json(run_dir / "request" / "config.json"))
    values: dict[str, tuple[Any, Any]] = {"seed": (earlier.seed, config.seed)}
    for field in fields(config.data):
        if field.name != "cache_dir":
            values[f"data.{field.name}"] = (getattr(earlier.data, field.name), getattr(config.data, field.name))
    return [
        error("resume-data", name, f"the run reads its data with {before}, now it is {after}", f"{name}={before}, or a new run")
        for name, (before, after) in values.items()
        if before != after
    ]


def run_contents(config: RunConfig, plan: Plan, words: CommandWords) -> RunContents:
    """Everything the workers of a feasible plan need, decided here once."""
    assert plan.model is not None
    model = {
        "name": plan.model.name,
        "hf_config": dict(plan.model.hf_config),
        "attention_implementation": plan.model.attention_implementation,
        "dropout": plan.model.dropout,
    }
    ds_config = compiled(config, plan, nvme_directory=_nvme_directory(config))
    return RunContents(config=config, plan=plan.to_dict(), ds_config=ds_config, model=model, words=words)


def _nvme_directory(config: RunConfig) -> str | None:
    """A folder of the run's own on the disk: two runs in one folder would read each other's swap files."""
    if config.offload.nvme_path is None:
        return None
    digest = hashlib.sha256(config.run_dir.encode()).hexdigest()[:8]
    return str(Path(config.offload.nvme_path) / f"orchestrator_{Path(config.run_dir).name}_{digest}")


def _remove_swap_files(config: RunConfig) -> None:
    """Workers that were killed could not remove what they had on this host's NVMe disk."""
    directory = _nvme_directory(config)
    if directory is None or not (Path(directory) / SWAP_OWNER).is_file():
        return
    if read_json(Path(directory) / SWAP_OWNER).get("run_dir") == config.run_dir:
        shutil.rmtree(directory, ignore_errors=True)


def _freeze(prepared: PreparedLaunch) -> Attempt:
    contents = run_contents(prepared.config, prepared.plan, prepared.words)
    if prepared.resume_tag is None:
        return start_run(prepared.run_dir, contents)
    return resume_run(prepared.run_dir, contents, resume_tag=prepared.resume_tag)


def _prepare_command(config: RunConfig, plan: Plan, attempt: Attempt) -> LaunchCommand:
    assert plan.cluster is not None
    write_text(attempt.path / HOSTFILE, hostfile_text(plan.cluster))
    write_text(attempt.path / ENVIRONMENT_FILE, environment_text(config, plan.cluster))
    command = launch_command(config, plan.cluster, attempt.path, working_directory=Path.cwd())
    write_text(attempt.path / "command.sh", command.shell() + "\n")
    write_json(attempt.path / "command.json", asdict(command) | {"working_directory": str(command.working_directory)})
    return command


def _dry_run(command: LaunchCommand, attempt: Attempt) -> CommandResult:
    payload = {"dry_run": True, "attempt": str(attempt.path), "command": command.shell()}
    return CommandResult(exit_code=OK, payload=payload, text=[Text("dry run: nothing was started")])


def _ended(outcome: Outcome, attempt: Attempt) -> CommandResult:
    result = attempt.result
    payload = {"attempt": str(attempt.path), "exit_code": outcome.exit_code, "log": str(attempt.log_file), "result": result}
    if outcome.interrupted:
        report: list[RenderableType] = [Text(f"interrupted; every process on this host has ended. Log: {attempt.log_file}")]
        return CommandResult(exit_code=INTERRUPTED, payload={"status": "interrupted", **payload}, text=report)
    if outcome.exit_code == 0 and result is not None:
        report = text.result_report(result, attempt.path)
        done = CommandResult(exit_code=OK, payload={"status": "completed", **payload}, text=report, metric=result["metric"])
        return with_receipt(done, attempt)
    failures = attempt.failures
    reason = failures[0]["error"] if failures else meaning(outcome.exit_code)
    if outcome.exit_code == 0 and not failures:
        reason = "the launcher ended with exit code 0, but the workers left no result: they were killed from outside"
    diagnosis = diagnose(end_of_log(attempt.log_file) if attempt.log_file.exists() else [])
    report = text.failure_report(reason, failures[:1], diagnosis, attempt.log_file)
    payload = {"status": "failed", "reason": reason, **payload, "diagnosis": diagnosis.to_dict()}
    return CommandResult(exit_code=RUN_FAILED, payload=payload, text=report)
