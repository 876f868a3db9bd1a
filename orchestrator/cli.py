"""The command line: a verb and Hydra overrides in, a report and an exit code out.

The only place that prints, that turns errors into exit codes, and that exits.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from hydra import main as hydra_main
from omegaconf import DictConfig
from rich.console import Console, RenderableType

from orchestrator.commands import (
    calibrate,
    completion,
    deepspeed_json,
    doctor,
    exact,
    explain,
    export,
    hydra_flags,
    launch,
    logs,
    named_run,
    plan,
    preflight,
    prepare,
    results,
    rules,
    slurm_job,
    slurm_restart,
    status,
    stop,
    sweep,
    sweep_preview,
    validate,
)
from orchestrator.commands import compile as compile_command
from orchestrator.commands.result import INTERRUPTED, OK, REFUSED, CommandResult
from orchestrator.config import load
from orchestrator.config.check import did_you_mean, unknown_flag
from orchestrator.config.enums import Command, Estimate, Output, View
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.report import help as help_text
from orchestrator.report import text
from orchestrator.report.prepare import PrepareView
from orchestrator.report.view import followed, view_of
from orchestrator.run_dir import Attempt, recorded_words

_WIDTH_OFF_TERMINAL = 160
Split = Callable[[Sequence[str]], tuple[list[str], list[str]]]
"""Words to names and overrides."""
RunCommand = Callable[[RunConfig, Attempt, Callable[[str], None]], CommandResult]
"""A command on a run, which says lines while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The words of the command line, sorted."""

    command: Command
    overrides: list[str]
    hydra_flags: list[str]
    config_dir: Path | None
    multirun: bool
    wants_help: bool

    @property
    def wants_json(self) -> bool:
        """Read before anything is composed: problems must be JSON as well."""
        return wants_json(self.overrides)


def wants_json(words: Sequence[str]) -> bool:
    """Whether the last word on ``output`` is json, however Hydra lets it be written."""
    named = [word.split("=", 1)[1].strip("'\" ") for word in words if word.lstrip("+").startswith("output=")]
    return bool(named) and named[-1] == "json"


def main() -> None:
    """Entry point of the ``orchestrator`` console script."""
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone; nothing more can be said, and Python must not try at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as problem:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        message = f"internal error, a bug of the orchestrator: {type(problem).__name__}: {problem}"
        if wants_json(sys.argv):
            print(text.to_json({"verdict": "internal error", "message": message, "findings": []}))
        print(message, file=sys.stderr)
        print("HYDRA_FULL_ERROR=1 shows where; please report it with the command line", file=sys.stderr)
        code = 1
    sys.exit(code)


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if not words or words[0] in ("--help", "-h", "help"):
        _console(json_on_stdout=False).print(help_text.overview())
        return OK if words else REFUSED
    if words[0] == "--version":
        print(f"orchestrator {metadata.version('orchestrator')}")
        return OK
    if words[0] in ("-sc", "--shell-completion"):
        return _completion(words[1:])
    arguments, findings = parse(words)
    if arguments is None:
        return _refuse(findings, as_json=wants_json(words))
    if arguments.wants_help:
        _console(json_on_stdout=False).print(help_text.verb(arguments.command, _HELP[arguments.command]))
        return OK
    if findings:
        return _refuse(findings, as_json=arguments.wants_json)
    try:
        return _run_command(arguments)
    except ConfigurationError as problem:
        return _refuse(problem.findings, as_json=arguments.wants_json)


def parse(words: Sequence[str]) -> tuple[Arguments | None, list[Finding]]:
    """Sort the words after ``orchestrator``; None when the verb itself is unknown."""
    verb, *rest = words
    if verb not in Command.__members__:
        fix = f"{did_you_mean(verb, list(Command))}use one of {', '.join(Command)}; orchestrator --help explains them"
        return None, [error("unknown-command", "command", f"there is no command {verb!r}", fix)]
    overrides: list[str] = []
    flags: list[str] = []
    findings: list[Finding] = []
    config_dir: Path | None = None
    remaining = deque(rest)
    while remaining:
        word = remaining.popleft()
        name, _, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            config_dir = Path(value or (remaining.popleft() if remaining else "(none given)"))
        elif name in hydra_flags.FLAGS:
            words_of_flag, problems = hydra_flags.read_flag(word, remaining)
            flags += words_of_flag
            findings += problems
        elif word.startswith("-") and word not in ("--help", "-h", "--multirun", "-m"):
            findings.append(unknown_flag(word))
        elif not word.startswith("-"):
            overrides.append(word)
    if config_dir is not None and not config_dir.is_dir():
        findings.append(
            error("config-dir", "--config-dir", f"{config_dir} is not a folder", "name a folder with config groups")
        )
    arguments = Arguments(
        command=Command[verb],
        overrides=overrides,
        hydra_flags=flags,
        config_dir=config_dir,
        multirun=any(word in ("--multirun", "-m") for word in rest),
        wants_help=any(word in ("--help", "-h") for word in rest),
    )
    findings += hydra_flags.flag_findings(flags, multirun=arguments.multirun)
    if arguments.multirun and arguments.command not in (Command.launch, Command.validate):
        fix = "sweep with launch -m, and look at a sweep beforehand with validate -m"
        findings.append(error("multirun", "-m", f"{verb} takes one configuration", fix))
    return arguments, findings


def _run_command(arguments: Arguments) -> int:
    overrides = [*arguments.overrides, f"command={arguments.command}"]
    if arguments.hydra_flags:
        # Hydra's help is composed without our files
        is_help = hydra_flags.HYDRA_HELP in arguments.hydra_flags
        if not is_help:
            load.check_words(overrides, config_dir=arguments.config_dir)
        return _hydra(arguments, arguments.overrides if is_help else overrides, lambda _composed: None)
    if arguments.multirun and arguments.command is Command.validate:
        output = Output.json if arguments.wants_json else Output.text
        return _finish(sweep_preview.run(overrides, config_dir=arguments.config_dir), output)
    if arguments.multirun:
        return _sweep(arguments, overrides)
    if arguments.command is Command.calibrate:
        return _calibrate(arguments)
    if arguments.command is Command.results:
        return _results(arguments)
    if arguments.command in _NAMING_COMMANDS:
        return _naming(arguments, *_NAMING_COMMANDS[arguments.command])
    if arguments.command in _RUN_COMMANDS:
        return _on_run(arguments, _RUN_COMMANDS[arguments.command])
    config = load.load_config(deepspeed_json.completed_words(overrides), config_dir=arguments.config_dir)
    if config.deepspeed_json is not None and arguments.command in _JSON_COMMANDS:
        return _finish(_JSON_COMMANDS[arguments.command](config, arguments.overrides), config.output)
    deepspeed_json.unsupported(config)
    if arguments.command is Command.export:
        return _export(arguments, config)
    if arguments.command is Command.prepare:
        return _prepare(arguments, config)
    if config.parallelism.auto and arguments.command not in (Command.launch, Command.plan):
        config, _ = _chosen(config)
    if arguments.command is Command.validate and config.estimate is Estimate.exact:
        console = _console(json_on_stdout=config.output is Output.json)
        return _finish(exact.run(config, lambda line: console.print(line, soft_wrap=True)), config.output)
    if arguments.command is Command.plan:
        return _finish(plan.run(config, arguments.overrides), config.output)
    if arguments.command is not Command.launch:
        return _finish(_PURE_COMMANDS[arguments.command](config), config.output)
    if slurm_restart.goes_on(config):
        arguments = replace(arguments, overrides=load.combine_overrides(arguments.overrides, ["checkpoint.resume=true"]))
        config = load.load_config(arguments.overrides, config_dir=arguments.config_dir)
    if config.checkpoint.resume:
        arguments, overrides, config = _resumed(arguments, config)
    if config.parallelism.auto:
        config, words = _chosen(config)
        arguments, overrides = replace(arguments, overrides=[*arguments.overrides, *words]), [*overrides, *words]
    prepared = launch.prepare(config, launch.command_words(config, arguments.overrides, arguments.config_dir))
    if isinstance(prepared, CommandResult):
        return _finish(prepared, config.output)
    return _launch(arguments, overrides, prepared)


def _completion(words: Sequence[str]) -> int:
    """``orchestrator -sc install=bash`` for the shell's start-up file, and what the shell asks afterwards."""
    if problem := completion.problem(words):
        return _refuse([problem], as_json=False)
    line = os.environ.get("COMP_LINE", "")
    is_query = any(word.startswith("query=") for word in words)
    if is_query and (verbs := completion.verbs_for(line)) is not None:
        print(" ".join(verbs))
        return OK
    os.environ["COMP_LINE"] = completion.without_verb(line)
    arguments = Arguments(
        command=Command.launch,
        overrides=[],
        hydra_flags=["--shell-completion"],
        config_dir=completion.config_dir_of(line),
        multirun=False,
        wants_help=False,
    )
    return _hydra(arguments, list(words), lambda _composed: None)


def _naming(arguments: Arguments, split: Split, run: Callable[[Sequence[str]], CommandResult]) -> int:
    """A command whose words are names beside overrides."""
    names, overrides = split(arguments.overrides)
    config = load.load_config([*overrides, f"command={arguments.command}"], config_dir=arguments.config_dir)
    return _finish(run(names), config.output)


def _on_run(arguments: Arguments, run: RunCommand) -> int:
    """A command whose word names a run."""
    names, overrides = named_run.split_words(arguments.overrides)
    config = load.load_config([*overrides, f"command={arguments.command}"], config_dir=arguments.config_dir)
    run_dir = named_run.named_run(names, overrides, config)
    console = _console(json_on_stdout=config.output is Output.json)

    def echo(line: str) -> None:
        console.print(line, soft_wrap=True)

    result = slurm_job.answer(arguments.command, config, run_dir, echo)
    if result is None:
        attempt = named_run.attempt_of(run_dir)
        view = _view(config, console) if config.follow else View.lines
        # a log has everything that the ranks print: who wants it quiet waits for the end alone
        with followed(view, console, attempt.path, unusual=lambda _line: False) as shown:
            result = run(config, attempt, shown)
    return _finish(result, config.output)


def _results(arguments: Arguments) -> int:
    names, overrides = named_run.split_words(arguments.overrides)
    config = load.load_config([*overrides, f"command={arguments.command}"], config_dir=arguments.config_dir)
    return _finish(results.run(config, names), config.output)


def _calibrate(arguments: Arguments) -> int:
    names, overrides = named_run.split_words(arguments.overrides)
    config = load.load_config([*overrides, f"command={arguments.command}"], config_dir=arguments.config_dir)
    console = _console(json_on_stdout=config.output is Output.json)
    result = calibrate.run(
        config, names, config_dir=arguments.config_dir, echo=lambda line: console.print(line, soft_wrap=True)
    )
    return _finish(result, config.output)


def _export(arguments: Arguments, config: RunConfig) -> int:
    findings = export.word_findings(arguments.overrides)
    if findings:
        raise ConfigurationError(findings)
    prepared = export.prepare(config)
    console = _console(json_on_stdout=config.output is Output.json)
    result = export.start(prepared, lambda line: console.print(line, soft_wrap=True))
    return _finish(result, config.output)


def _prepare(arguments: Arguments, config: RunConfig) -> int:
    findings = prepare.word_findings(arguments.overrides)
    if findings:
        raise ConfigurationError(findings)
    console = _console(json_on_stdout=config.output is Output.json)
    view = PrepareView(console, _view(config, console))
    if config.prepare.check:
        return _finish(prepare.check(config, view), config.output)
    result = prepare.start(prepare.request_of(config), view, stop_seconds=config.launcher.stop_seconds)
    return _finish(result, config.output)


def _resumed(arguments: Arguments, config: RunConfig) -> tuple[Arguments, list[str], RunConfig]:
    """A resume starts from the words the run was started with; what is given now changes them."""
    recorded = recorded_words(Path(config.run_dir))
    config_dir = arguments.config_dir or (Path(recorded.config_dir) if recorded.config_dir else None)
    overrides = load.combine_overrides(recorded.overrides, arguments.overrides)
    arguments = replace(arguments, overrides=overrides, config_dir=config_dir)
    overrides = [*overrides, f"command={arguments.command}"]
    return arguments, overrides, load.load_config(overrides, config_dir=config_dir)


def _chosen(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """What the planner chooses where ``parallelism=auto`` leaves it the choice, said to people and as words for a resume."""
    config, entry = plan.with_choice(config)
    console = _console(json_on_stdout=True)
    console.print(f"parallelism=auto: {' '.join(entry.overrides)}", soft_wrap=True)
    return config, list(entry.overrides)


def _launch(arguments: Arguments, overrides: list[str], prepared: launch.PreparedLaunch) -> int:
    """Run a prepared launch as Hydra's job, in the run directory that was prepared."""
    codes: list[int] = []

    def job(_composed: DictConfig) -> float | None:
        try:
            result = _start(prepared)
        except ConfigurationError as problem:
            # what cannot be known before the start: another launch has taken the run directory meanwhile
            codes.append(_refuse(problem.findings, as_json=arguments.wants_json))
            return None
        codes.append(_finish(result, prepared.config.output))
        return result.metric

    failed = _hydra(arguments, [*overrides, f"run_dir={load.quoted(prepared.config.run_dir)}"], job)
    return codes[0] if codes else failed


def _sweep(arguments: Arguments, overrides: list[str]) -> int:
    prepared = sweep.prepare(overrides, config_dir=arguments.config_dir)
    output = Output.json if arguments.wants_json else Output.text
    return _finish(sweep.run(prepared, partial(_say, on_stderr=arguments.wants_json)), output)


def _say(line: str, *, on_stderr: bool) -> None:
    """Tell people one line; a sweep does so from several processes."""
    _console(json_on_stdout=on_stderr).print(line, soft_wrap=True)


def _start(prepared: launch.PreparedLaunch) -> CommandResult:
    console = _console(json_on_stdout=prepared.config.output is Output.json)

    def show(parts: Iterable[RenderableType]) -> None:
        for part in parts:
            console.print(part, soft_wrap=True)

    def echo(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    follow = partial(followed, _view(prepared.config, console), console)
    return launch.start(prepared, echo, show, follow=follow)


def _view(config: RunConfig, console: Console) -> View:
    view = view_of(config.view, console, only_if_asked=config.output is Output.json)
    if config.view is View.live and view is not View.live:
        _console(json_on_stdout=True).print("warning: view=live needs a terminal that can move its cursor: lines are shown")
    return view


def _hydra(arguments: Arguments, overrides: list[str], job: Callable[[DictConfig], Any]) -> int:
    """Hand the command line to ``@hydra.main``: output directories, sweepers, completion, ``--cfg``, ``--info``."""
    load.register_schema()
    flags = [*arguments.hydra_flags, *(["--multirun"] if arguments.multirun else [])]
    if arguments.config_dir is not None:
        flags += ["--config-dir", str(arguments.config_dir)]
    sys.argv = [sys.argv[0], *flags, *overrides]
    decorated = hydra_main(config_path=load.CONFIG_PATH, config_name=load.CONFIG_NAME, version_base=load.VERSION_BASE)(job)
    try:
        decorated()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return OK


def _finish(result: CommandResult, output: Output) -> int:
    if output is Output.json:
        print(text.to_json(result.payload))
    else:
        console = _console(json_on_stdout=False)
        for part in result.text:
            console.print(part, soft_wrap=True)
        remarks = _console(json_on_stdout=True)
        for part in result.remarks:
            remarks.print(part, soft_wrap=True)
    return result.exit_code


def _refuse(findings: Sequence[Finding], *, as_json: bool) -> int:
    if as_json:
        print(text.to_json({"verdict": "invalid", "findings": [finding.to_dict() for finding in findings]}))
        return REFUSED
    console = Console(stderr=True, soft_wrap=True, markup=False)
    for line in text.findings_report(findings):
        console.print(line)
    return REFUSED


def _console(*, json_on_stdout: bool) -> Console:
    """Where people are spoken to: standard output, unless that is kept for JSON. Off a terminal, tables are not squeezed."""
    console = Console(stderr=json_on_stdout, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH_OFF_TERMINAL
    return console


_PURE_COMMANDS: dict[Command, Callable[[RunConfig], CommandResult]] = {
    Command.validate: validate.run,
    Command.compile: compile_command.run,
    Command.doctor: doctor.run,
    Command.preflight: preflight.run,
}
_JSON_COMMANDS: dict[Command, Callable[[RunConfig, Sequence[str]], CommandResult]] = {
    Command.validate: deepspeed_json.validate,
    Command.compile: deepspeed_json.compile,
}
_NAMING_COMMANDS: dict[Command, tuple[Split, Callable[[Sequence[str]], CommandResult]]] = {
    Command.rules: (rules.split_words, rules.run),
    Command.explain: (named_run.split_words, explain.run),
}
_RUN_COMMANDS: dict[Command, RunCommand] = {
    Command.status: status.run,
    Command.logs: logs.run,
    Command.stop: stop.run,
}
_HELP = {
    Command.validate: validate.HELP,
    Command.plan: plan.HELP,
    Command.compile: compile_command.HELP,
    Command.launch: launch.HELP,
    Command.export: export.HELP,
    Command.doctor: doctor.HELP,
    Command.preflight: preflight.HELP,
    Command.prepare: prepare.HELP,
    Command.rules: rules.HELP,
    Command.explain: explain.HELP,
    Command.status: status.HELP,
    Command.logs: logs.HELP,
    Command.stop: stop.HELP,
    Command.results: results.HELP,
    Command.calibrate: calibrate.HELP,
}
