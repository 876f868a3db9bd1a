"""``explain``: why a DeepSpeed job failed, read from its log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.commands.result import OK, CommandResult
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.diagnosis import diagnose, end_of_log
from orchestrator.report import text
from orchestrator.run_dir import newest_log

HELP = """Say why a job failed: which rank failed first, what that means, and what to do. Any log of a DeepSpeed job will do.

Examples:
  orchestrator explain runs/books
  orchestrator explain slurm-1234.out
  orchestrator explain train.log output=json"""

RULE = "log"


def run(words: Sequence[str]) -> CommandResult:
    """Explain the log that ``words`` name: a file, or a run directory, whose newest attempt is meant.

    Raises:
        ConfigurationError: there is no such log, or not exactly one is named.
    """
    if len(words) != 1:
        named = "no log is named" if not words else f"{len(words)} logs are named"
        raise ConfigurationError([error(RULE, "command", named, "orchestrator explain LOG, or explain RUN_DIR")])
    path = Path(os.path.expanduser(words[0]))  # noqa: PTH111 - Path's raises for unknown users
    log = newest_log(path) if path.is_dir() else path
    try:
        lines = end_of_log(log or path)
    except OSError as problem:
        reason = "there is no log of a run in it" if log is None else problem.strerror
        fix = "name the file with the job's output, or the directory of a run"
        raise ConfigurationError([error(RULE, "command", f"{path}: {reason}", fix)]) from None
    diagnosis = diagnose(lines)
    return CommandResult(
        exit_code=OK, payload={"log": str(log), **diagnosis.to_dict()}, text=text.diagnosis_report(diagnosis, log or path)
    )


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The logs among ``words``, and the overrides. A path may hold an equals sign if it exists."""
    logs = [word for word in words if "=" not in word or Path(word).exists()]
    return logs, [word for word in words if word not in logs]
