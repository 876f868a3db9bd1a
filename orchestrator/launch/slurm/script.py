"""The script of a Slurm job: what sbatch is told, and the command that runs in the allocation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.enums import Accelerator, LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error

JOB_SCRIPT = "job.sbatch"
FLAG = "true"
"""The value of an option that takes none."""
EARLY_SECONDS = 60
"""Slurm looks at time limits now and then: a signal before the limit may come so much earlier (``man sbatch``)."""

_OPTIONS = "launcher.slurm.options"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")
_LONGEST_SIGNAL_SECONDS = 65_535
_SECONDS_AS_MINUTES = 3600
"""YAML reads 1:00:00 without quotes as this number, and sbatch a number as minutes."""

_WHOLE_HOST = {"exclusive": FLAG, "mem": "0"}
_PARTS_OF_A_HOST = frozenset(
    {"cpus-per-gpu", "cpus-per-task", "exclusive", "mem", "mem-per-cpu", "mem-per-gpu", "mincpus", "oversubscribe"}
)
_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres"})
_OWN = {
    "nodes": "set cluster.hosts",
    "ntasks": "set cluster.hosts: each host has one task, which starts a process for each device",
    "ntasks-per-node": "set cluster.devices_per_host: each host has one task, which starts a process for each device",
    "ntasks-per-gpu": "set cluster.devices_per_host: each host has one task, which starts a process for each device",
    "signal": "set launcher.slurm.save_seconds_before_limit",
    "requeue": "set launcher.slurm.requeue",
    "no-requeue": "set launcher.slurm.requeue=false",
    "output": "the output of the job lies in run_dir",
    "error": "the output of the job lies in run_dir",
    "open-mode": "the output of the job lies in run_dir, one start after the other",
    "chdir": "launch from that folder",
    "array": "sweep with launch -m: each point is a job of its own",
    "wait": "leave launcher.detach=false: launch follows the job to its end",
    "parsable": "output=json has the number of the job",
    "test-only": "dry_run=true writes the script and submits nothing",
    "wrap": "the job runs the orchestrator",
    "clusters": "launch on a login node of that cluster",
}
"""Options that are ours, and what to do instead."""
_LONG = {"A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "N": "nodes", "c": "cpus-per-task",
         "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time",
         "w": "nodelist", "x": "exclude"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScript:
    """A job to be submitted."""

    config: RunConfig
    run_dir: Path
    """Absolute, and seen by every host."""
    working_directory: Path
    program: Sequence[str]
    """What runs in the allocation."""
    arguments: Sequence[str]
    """Its arguments, for a line each."""

    @property
    def output(self) -> str:
        """Where everything goes that the job prints, over all its starts; ``%j`` stands for the job's number."""
        return str(self.run_dir).replace("%", "%%") + "/slurm-%j.out"

    def text(self) -> str:
        """The script. Nothing secret is in it: the job gets the environment of who submits it, as Slurm does by default."""
        slurm = self.config.launcher.slurm
        again = "After that, or when a host fails, the job starts again and goes on from the newest checkpoint."
        sections: dict[str, dict[str, str]] = {
            "One task a host, which starts a process for each of its devices.": self._hosts(),
            "Everything the job prints, one start after the other.": {
                "job-name": slurm.options.get("job-name", self.config.model.name),
                "chdir": str(self.working_directory),
                "output": self.output,
                "open-mode": "append",
            },
            f"{slurm.save_seconds_before_limit} s before its time limit the run is asked to save and stop.": {
                "signal": f"B:USR1@{slurm.save_seconds_before_limit}"
            },
            again if slurm.requeue else "The job starts once.": {"requeue" if slurm.requeue else "no-requeue": FLAG},
            "launcher.slurm.options": {name: value for name, value in slurm.options.items() if name != "job-name"},
        }
        lines = ["#!/bin/bash"]
        for title, options in sections.items():
            if options:
                lines += ["", f"# {title}", *(_line(name, value) for name, value in options.items())]
        lines += [
            "",
            "# Plans and checks again with the hosts of the allocation, then trains there. exec: Slurm's signals are for it;",
            "# the one before the time limit is ignored until the run has started.",
            "trap '' USR1",
            " \\\n    ".join([f"exec {shlex.join(self.program)}", *map(shlex.quote, self.arguments)]),
        ]
        return "\n".join(lines) + "\n"

    def _hosts(self) -> dict[str, str]:
        cluster, given = self.config.cluster, self.config.launcher.slurm.options.keys()
        options = {"nodes": str(cluster.hosts), "ntasks-per-node": "1"}
        if cluster.accelerator is Accelerator.cuda and not given & _GPUS:
            options["gpus-per-node"] = str(cluster.devices_per_host)
        # one task would get one core, and the site's default share of the memory
        return options if given & _PARTS_OF_A_HOST else options | _WHOLE_HOST


def slurm_findings(config: RunConfig) -> Iterator[Finding]:
    """What of the configuration no Slurm job can have; nothing for other backends."""
    if config.launcher.backend is not LauncherBackend.slurm:
        return
    for name in ("hostfile", "include", "exclude"):
        if (value := getattr(config.cluster, name)) is not None:
            message = f"Slurm chooses the hosts of a job, and cluster.{name}={value} names them"
            fix = f"cluster.{name}=null; {_OPTIONS}.nodelist and {_OPTIONS}.exclude say which hosts Slurm may take"
            yield error("slurm-hosts", f"cluster.{name}", message, fix)
    for name, value in config.launcher.slurm.options.items():
        yield from _option_findings(name, value)
    yield from _time_findings(config)


def _option_findings(name: str, value: str) -> Iterator[Finding]:
    field = f"{_OPTIONS}.{name}"
    long = _LONG.get(name.lstrip("-"), name.lstrip("-"))
    if long in _OWN:
        yield error("slurm-option", field, f"the orchestrator itself sets {long} of a job", _OWN[long])
    elif long != name:
        yield error(
            "slurm-option", field, f"{name!r} is not an option's name as it is written here", f"{_OPTIONS}.{long}={value}"
        )
    elif not _NAME.fullmatch(name):
        fix = "write the long name that man sbatch has, without dashes before it"
        yield error("slurm-option", field, f"{name!r} is not a long option of sbatch", fix)
    elif not value.isprintable():
        yield error("slurm-option", field, f"{value!r} does not fit on one line of a script", "write it on one line")


def _time_findings(config: RunConfig) -> Iterator[Finding]:
    """The time limit is long enough to save before it, and is what its author meant."""
    slurm = config.launcher.slurm
    if not 1 <= slurm.save_seconds_before_limit <= _LONGEST_SIGNAL_SECONDS:
        message = f"sbatch takes 1 to {_LONGEST_SIGNAL_SECONDS} s before the limit, not {slurm.save_seconds_before_limit}"
        yield error("slurm-time", "launcher.slurm.save_seconds_before_limit", message, "give the seconds a checkpoint takes")
    written = slurm.options.get("time")
    if written is None or (limit := time_limit_seconds(written)) is None:
        return
    if written.isdigit() and int(written) >= _SECONDS_AS_MINUTES:
        message = f"time is the number {written}, which sbatch reads as minutes; YAML makes one of 12:00:00 without quotes"
        fix = f'write the time in quotes, time: "12:00:00", or with days: {int(written) // 1440}-{int(written) % 1440 // 60}'
        yield error("slurm-time", f"{_OPTIONS}.time", message, fix)
    elif limit <= slurm.save_seconds_before_limit + EARLY_SECONDS:
        message = (
            f"a job of {limit} s would be asked to save at its very start: {slurm.save_seconds_before_limit} s before the"
            f" limit, and Slurm may do so {EARLY_SECONDS} s earlier"
        )
        fix = "give the job more time, or save later: launcher.slurm.save_seconds_before_limit"
        yield error("slurm-time", f"{_OPTIONS}.time", message, fix)


def time_limit_seconds(written: str) -> int | None:
    """A time as sbatch reads it, in seconds: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for anything else, or no limit."""
    match = _TIME.fullmatch(written.strip())
    if match is None:
        return None
    parts = [int(part) for part in match["parts"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return ((int(match["days"]) * 24 + hours) * 60 + minutes) * 60 + seconds
    hours, minutes, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    return (hours * 60 + minutes) * 60 + seconds


def own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for sbatch: its variables win over the script, so those for options of ours must go."""
    ours = {f"SBATCH_{name.upper().replace('-', '_')}" for name in (*_OWN, "array-inx")}
    return {name: value for name, value in environment.items() if name not in ours}


def _line(name: str, value: str) -> str:
    return f"#SBATCH --{name}" if value == FLAG else f"#SBATCH --{name}={shlex.quote(value)}"
