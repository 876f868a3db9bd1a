"""Which run the words of a command name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.slurm.job import JOB_RECORD
from orchestrator.run_dir import Attempt, newest_attempt

RULE = "run"
RUNS = Path("runs")
"""Where ``launch`` puts runs that are not told where to go."""


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The paths (runs, logs, folders) among ``words``, and the overrides. A path may hold an equals sign if it exists."""
    names = [word for word in words if "=" not in word or Path(word).exists()]
    return names, [word for word in words if word not in names]


def named_run(names: Sequence[str], overrides: Sequence[str], config: RunConfig) -> Path:
    """The directory of the run that is meant: the one named, ``run_dir=``, or the newest under ``runs/``; absolute.

    Raises:
        ConfigurationError: there is none, or several are named.
    """
    if len(names) > 1:
        raise _refusal(f"{len(names)} runs are named: {', '.join(names)}", "name one")
    if names:
        run_dir = Path(os.path.expanduser(names[0]))  # noqa: PTH111 - Path's raises for unknown users
    elif any(word.lstrip("+").startswith("run_dir=") for word in overrides):
        run_dir = Path(os.path.expanduser(config.run_dir))  # noqa: PTH111
    else:
        run_dir = _newest_run()
    return run_dir.absolute()


def attempt_of(run_dir: Path) -> Attempt:
    """The newest attempt of a run.

    Raises:
        ConfigurationError: there is none.
    """
    attempt = newest_attempt(run_dir)
    if attempt is None:
        what = "holds no run" if run_dir.is_dir() else "is not a folder"
        raise _refusal(f"{run_dir} {what}", "name the directory of a run, as launch printed it")
    return attempt


def _newest_run() -> Path:
    attempts = [path for path in RUNS.glob("*/attempts/*") if path.name.isdigit()]
    starts = {path: path.parents[1] for path in attempts} | {path: path.parent for path in RUNS.glob(f"*/{JOB_RECORD}")}
    if not starts:
        raise _refusal("no run is named, and there is none under runs/ here", "name the directory of the run")
    return starts[max(starts, key=lambda path: path.stat().st_mtime)]


def _refusal(message: str, fix: str) -> ConfigurationError:
    return ConfigurationError([error(RULE, "run_dir", message, fix)])
