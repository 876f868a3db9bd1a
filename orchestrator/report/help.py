"""The help pages: the verbs, the config groups with their options, and every option as the schema documents it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.config.check import MISSING
from orchestrator.config.enums import Command
from orchestrator.config.options import Option, all_options, type_name

_FLAGS = "[--config-dir DIR] [--cfg job] [--info]"
_VERBS = {
    Command.validate: "plan the run: does it make sense, does it fit on every rank?",
    Command.plan: "find the fastest plan that fits: layout, ZeRO, offload, micro-batch, recomputation",
    Command.compile: "print the DeepSpeed JSON of the run",
    Command.launch: "train: validate, start the deepspeed launcher, follow it to its end",
    Command.export: "write a checkpoint of a run as a Hugging Face folder",
    Command.prepare: "turn text into token files to train on",
    Command.preflight: "look at every host of the run: can it take part?",
    Command.doctor: "what this machine has, and what to install",
    Command.rules: "list the rules a run is held against, or explain one",
    Command.explain: "say from its log why a DeepSpeed job failed",
    Command.status: "how a run stands: step, rate, hosts, newest metrics and checkpoint",
    Command.logs: "the log of a run; follow=true until it has ended",
    Command.stop: "end a run from wherever its directory is seen: save and stop, or now=true",
    Command.results: "runs and sweeps side by side: what varies, how they stand, what came out",
    Command.calibrate: "fit a cluster's speeds to finished runs, or measure them",
}
_NAMES = {
    Command.rules: "[RULE ...] ",
    Command.explain: "LOG|RUN_DIR ",
    Command.status: "[RUN_DIR] ",
    Command.logs: "[RUN_DIR] ",
    Command.stop: "[RUN_DIR] ",
    Command.results: "[DIR ...] ",
    Command.calibrate: "[RUN_DIR ...] ",
}
_SWEEPING = (Command.launch, Command.validate)
_EXIT_CODES = {
    0: "done, or feasible",
    1: "a bug of the orchestrator, said in one line; HYDRA_FULL_ERROR=1 shows where",
    2: "refused: the configuration is invalid or the plan does not fit; nothing was started",
    3: "a host is not ready; nothing was started",
    4: "the run failed",
    130: "interrupted; every process of the run has ended",
}


def overview() -> RenderableType:
    """``orchestrator --help``."""
    return Group(
        Text(f"usage: orchestrator VERB [NAME ...] [GROUP=OPTION ...] [KEY=VALUE ...] [-m] {_FLAGS}"),
        _table("verbs", {command.value: meaning for command, meaning in _VERBS.items()}),
        _table("exit codes", {str(code): meaning for code, meaning in _EXIT_CODES.items()}),
        Text("orchestrator VERB --help explains a verb and lists every group and option."),
    )


def verb(command: Command, explanation: str) -> RenderableType:
    """``orchestrator VERB --help``."""
    title = "options (KEY=VALUE); default: where no file of a group sets another, and (file): a file always does"
    options = Table(title=title, title_justify="left", box=None, pad_edge=False)
    options.add_column("key", no_wrap=True)
    options.add_column("default", overflow="fold", max_width=26)
    options.add_column("meaning", overflow="fold")
    for option in all_options():
        options.add_row(option.path, "(file)" if option.default == MISSING else option.default, _meaning(option))
    groups = _table("groups (GROUP=OPTION)", dict(_groups()))
    return Group(Text(_usage(command)), Text(f"\n{explanation}\n"), groups, options)


def _usage(command: Command) -> str:
    sweeping = "[-m] " if command in _SWEEPING else ""
    return f"usage: orchestrator {command} {_NAMES.get(command, '')}[GROUP=OPTION ...] [KEY=VALUE ...] {sweeping}{_FLAGS}"


def _meaning(option: Option) -> str:
    """The documentation on one line, as the table wraps it, without the schema's mark-up."""
    return f"{' '.join(option.documentation.replace('``', '`').split())} ({type_name(option.type)})"


def _groups() -> Iterator[tuple[str, str]]:
    for folder in sorted(resources.files("orchestrator.conf").iterdir(), key=lambda entry: entry.name):
        if folder.is_dir() and not folder.name.startswith("_"):
            names = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
            yield folder.name, ", ".join(name for name in names if not name.startswith("_"))


def _table(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, meaning in rows.items():
        table.add_row(f"  {name}", meaning)
    return table
