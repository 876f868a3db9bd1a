"""``launch``: plan, check this host, freeze the request, start DeepSpeed's launcher, watch it, and say how it ended."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from orchestrator.checkpoints.catalogue import newest, resume_findings
from orchestrator.commands import out_of_memory, slurm, slurm_restart
from orchestrator.commands.compile import compiled
from orchestrator.commands.out_of_memory import OutOfMemory
from orchestrator.commands.own_script import resumed_script, script_entry
from orchestrator.commands.paths import absolute_paths, with_absolute_paths
from orchestrator.commands.planned import plan_run
from orchestrator.commands.readiness import readiness
from orchestrator.commands.receipt import with_receipt
from orchestrator.commands.result import INTERRUPTED, OK, RUN_FAILED, CommandResult
from orchestrator.commands.resumed_data import changed_data
from orchestrator.commands.tracked import given_run_id, sync_command
from orchestrator.commands.validate import refusal
from orchestrator.config.enums import LauncherBackend, View
from orchestrator.config.load import combine_overrides, quoted
from orchestrator.config.schema import RunConfig
from orchestrator.control import ControllerRecord
from orchestrator.deepspeed_config.resume import fixed_options
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity, error, has_error
from orchestrator.launch.command import HOSTFILE, host_findings, hostfile_text, launch_spec
from orchestrator.launch.controller import Controller
from orchestrator.launch.detach import hand_over, sweep_findings
from orchestrator.launch.ending.causes import HOST_OUT_OF_MEMORY
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.status import Status
from orchestrator.launch.environment import private_variables
from orchestrator.launch.pdsh import WORKER_ENVIRONMENT, worker_environment_text
from orchestrator.launch.slurm.allocation import submits_a_job
from orchestrator.launch.spec import LaunchSpec
from orchestrator.planning.plan import Plan
from orchestrator.report import outcome as outcome_report
from orchestrator.report import text
from orchestrator.run_dir import (
    COMMAND,
    Attempt,
    CommandWords,
    RunContents,
    checkpoint_dir,
    exclusive,
    require_new,
    require_usable,
    resume_run,
    start_run,
    writable,
    write_json,
    write_text,
)

HELP = """Train: validate, check the hosts, freeze the request in run_dir, start the deepspeed launcher and follow it.

Examples:
  orchestrator launch
  orchestrator launch experiment=smoke zero=stage3
  orchestrator launch model=llama_3_1b cluster=dgx_h100 data=text data.path=/data/books run_dir=runs/books
  orchestrator launch run_dir=runs/books checkpoint.resume=true
  orchestrator launch training.script=train.py 'training.script_arguments=["{trainer_arguments}"]' model=hf model.config_path=.
  orchestrator launch launcher=slurm cluster=dgx_h100 cluster.hosts=4 model=llama_3_8b launcher.slurm.options.time=1-00
  orchestrator launch experiment=llama_3_8b_dgx_h100 data.path=/data/books dry_run=true
  orchestrator launch -m zero=stage1,stage2,stage3 training.train_micro_batch_size_per_gpu=1,2,4 hydra.sweep.dir=sweeps/zero
  orchestrator launch -m sweep.resume=true hydra.sweep.dir=sweeps/zero"""

Echo = Callable[[str], None]
_WORDS_OF_ONE_START = {"run_dir", "output", "view", "dry_run", "checkpoint.resume", "sweep.resume"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLaunch:
    """A launch that may start: nothing has been written yet."""

    config: RunConfig
    words: CommandWords
    plan: Plan
    resume_tag: str | None
    remarks: Sequence[Finding]
    master_addr: str | None
    """An address of the first host that all others were seen to reach."""
    starts_over: bool = False
    """Whether the run was started before and has no checkpoint: its earlier attempts stay."""

    @property
    def run_dir(self) -> Path:
        """The directory of the run, absolute."""
        return Path(self.config.run_dir)


def prepare(config: RunConfig, words: CommandWords, *, starts_over: bool = False) -> PreparedLaunch | CommandResult:
    """Check everything that can be checked before a start; a result is a refusal.

    ``words`` made ``config``; a later resume starts from them. ``starts_over``: earlier attempts of the run left no
    checkpoint, and this one begins anew beside them.

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
    if submits_a_job(config):
        slurm.require_no_job(run_dir)
    starts_over = starts_over or (not config.checkpoint.resume and slurm_restart.is_started_again(config))
    if not config.checkpoint.resume and not starts_over:
        require_new(run_dir)
    remarks: list[Finding] = []
    master_addr = resume_tag = None
    if submits_a_job(config):
        if refused := slurm.login_refusal(config):
            return refused
    elif config.preflight.enabled and not config.dry_run:
        ready = readiness(config, plan)
        if not ready.is_ready:
            return ready.result()
        plan, remarks, master_addr = ready.plan, ready.findings, ready.check.master_address
    if config.checkpoint.resume:
        resume_tag, resume_remarks = _resumed(config, plan, run_dir)
        remarks += resume_remarks
    return PreparedLaunch(
        config=config,
        words=words,
        plan=plan,
        resume_tag=resume_tag,
        remarks=remarks,
        master_addr=master_addr,
        starts_over=starts_over,
    )


def start(
    prepared: PreparedLaunch,
    echo: Echo,
    show: Callable[[Iterable[RenderableType]], None],
    *,
    follow: Callable[[Path], AbstractContextManager[Echo]] | None = None,
) -> CommandResult:
    """Freeze the request, start the launcher and follow it to its end.

    ``show`` receives the plan and the command before the start, ``echo`` progress lines while the run goes on; or what
    ``follow`` makes of an attempt, for as long as it runs here.
    """
    config, plan = prepared.config, prepared.plan
    if submits_a_job(config):
        show(_announcement(prepared))
        return slurm.launch_job(config, prepared.words, echo, show)
    with exclusive(prepared.run_dir):
        with writable(prepared.run_dir):
            attempt = _freeze(prepared)
            spec = _prepare_spec(config, plan, attempt, prepared.master_addr)
        show(_announcement(prepared))
        if config.view is not View.quiet or config.dry_run:
            show(text.command_report(spec.shell(), attempt.path))
        if config.dry_run:
            return _dry_run(spec, attempt)
        if not config.launcher.detach:
            slurm_restart.keep_job(config)
            with nullcontext(echo) if follow is None else follow(attempt.path) as shown:
                with writable(prepared.run_dir):
                    controller = Controller(attempt.path, spec, private=private_variables(), echo=shown)
                outcome = controller.run()
            slurm_restart.requeue_if_due(config, outcome, prepared.resume_tag, echo)
            return _ended(outcome, attempt)
    return _detached(hand_over(attempt.path, spec, private=private_variables()), attempt)


def command_words(config: RunConfig, overrides: Sequence[str], config_dir: Path | None) -> CommandWords:
    """The words of a run for a later resume, from wherever that is started: paths absolute, nothing of this start alone."""
    kept = [override for override in overrides if override.split("=")[0] not in _WORDS_OF_ONE_START]
    paths = [f"{path}={quoted(value)}" for path, value in absolute_paths(config).items()]
    directory = str(config_dir.absolute()) if config_dir else None
    return CommandWords(overrides=tuple(combine_overrides(kept, paths)), config_dir=directory)


def _announcement(prepared: PreparedLaunch) -> list[RenderableType]:
    """What people are told before the start; if they want it quiet, only what is to be feared."""
    if prepared.config.view is View.quiet and not prepared.config.dry_run:
        findings = [
            finding for finding in (*prepared.plan.findings, *prepared.remarks) if finding.severity is not Severity.info
        ]
        return text.findings_report(findings)
    return [*text.plan_report(prepared.plan), *text.findings_report(prepared.remarks)]


def require_attached(config: RunConfig) -> None:
    """Make sure that the point of a sweep is one that can be waited for.

    Raises:
        ConfigurationError: it would run detached.
    """
    if findings := sweep_findings(config.launcher):
        raise ConfigurationError(findings)


def _resumed(config: RunConfig, plan: Plan, run_dir: Path) -> tuple[str | None, list[Finding]]:
    """The checkpoint to go on from, and what to know about it; a script of the user's own finds its own."""
    findings = resumed_script(config, run_dir)
    if has_error(findings):
        raise ConfigurationError(findings)
    return (None, findings) if config.training.script else _resume_tag(config, plan, run_dir)


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
    findings += changed_data(config, run_dir)
    if has_error(findings):
        raise ConfigurationError(findings)
    return checkpoint.tag, findings


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
    script = script_entry(config)
    return RunContents(config=config, plan=plan.to_dict(), ds_config=ds_config, model=model, words=words, script=script)


def _nvme_directory(config: RunConfig) -> str | None:
    """A folder of the run's own on the disk: two runs in one folder would read each other's swap files."""
    if config.offload.nvme_path is None:
        return None
    digest = hashlib.sha256(config.run_dir.encode()).hexdigest()[:8]
    return str(Path(config.offload.nvme_path) / f"orchestrator_{Path(config.run_dir).name}_{digest}")


def _freeze(prepared: PreparedLaunch) -> Attempt:
    contents = run_contents(prepared.config, prepared.plan, prepared.words)
    if not (prepared.config.checkpoint.resume or prepared.starts_over):
        return start_run(prepared.run_dir, contents, wandb_id=given_run_id(prepared.run_dir, os.environ))
    return resume_run(prepared.run_dir, contents, resume_tag=prepared.resume_tag)


def _prepare_spec(config: RunConfig, plan: Plan, attempt: Attempt, master_addr: str | None) -> LaunchSpec:
    assert plan.cluster is not None
    write_text(attempt.path / HOSTFILE, hostfile_text(plan.cluster))
    swap_directory = _nvme_directory(config)
    spec = launch_spec(
        config,
        plan.cluster,
        attempt.path,
        working_directory=Path.cwd(),
        master_addr=master_addr,
        swap_directory=swap_directory,
    )
    if spec.backend is LauncherBackend.pdsh:
        write_text(attempt.path / WORKER_ENVIRONMENT, worker_environment_text(attempt.path, spec.environment, spec.setup))
    write_text(attempt.path / "command.sh", spec.shell() + "\n")
    write_json(attempt.path / COMMAND, spec.to_dict())
    return spec


def _dry_run(spec: LaunchSpec, attempt: Attempt) -> CommandResult:
    payload = {"dry_run": True, "attempt": str(attempt.path), "command": spec.shell()}
    return CommandResult(exit_code=OK, payload=payload, text=[Text("dry run: nothing was started")])


def _detached(controller: ControllerRecord, attempt: Attempt) -> CommandResult:
    payload = {
        "status": "detached",
        "attempt": str(attempt.path),
        "log": str(attempt.log_file),
        "controller": asdict(controller),
    }
    return CommandResult(exit_code=OK, payload=payload, text=outcome_report.detached_report(controller, attempt.run_dir))


def _ended(outcome: Outcome, attempt: Attempt) -> CommandResult:
    upload = sync_command(attempt.run_dir)
    payload = {"attempt": str(attempt.path), "log": str(attempt.log_file), "wandb_sync": upload, **outcome.to_dict()}
    if outcome.status is Status.completed:
        assert outcome.result is not None
        report = text.result_report(outcome.result, attempt.path, upload)
        done = CommandResult(exit_code=OK, payload=payload, text=report, metric=outcome.result["metric"])
        return with_receipt(done, attempt)
    uploading = text.upload_report(upload)
    if outcome.status is Status.interrupted:
        report = [*outcome_report.interruption_report(outcome, attempt.log_file), *uploading]
        return CommandResult(exit_code=INTERRUPTED, payload=payload, text=report)
    memory = _out_of_memory(outcome, attempt)
    payload["out_of_memory"] = None if memory is None else memory.to_dict()
    failure = outcome_report.failure_report(outcome, attempt.log_file)
    report = [*failure, *([] if memory is None else memory.text()), *uploading]
    return CommandResult(exit_code=RUN_FAILED, payload=payload, text=report)


def _out_of_memory(outcome: Outcome, attempt: Attempt) -> OutOfMemory | None:
    """What the rank that failed first needed and had, if memory was what it lacked."""
    first = outcome.first
    if first is None:
        return None
    return out_of_memory.report(attempt, first.rank, killed=first.cause == HOST_OUT_OF_MEMORY and first.exit_code != 1)
