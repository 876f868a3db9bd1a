"""``explain``: why a DeepSpeed job failed, read from its log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.commands.out_of_memory import report_of_failure
from orchestrator.commands.result import OK, CommandResult
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.ending.diagnosis import diagnose, end_of_log
from orchestrator.report import text
from orchestrator.run_dir import newest_started

HELP = """Say why a job failed: which rank failed first, what that means, and what to do. Any log of a DeepSpeed job will do.

Examples:
  orchestrator explain runs/books
  orchestrator explain slurm-1234.out
  orchestrator explain train.log output=json"""

RULE = "log"


def run(words: Sequence[str]) -> CommandResult:
    """Explain the log that ``words`` name: a file, or a run directory, whose newest attempt with a log is meant.

    Of a run that ran out of memory its plan is held against what the rank had.

    Raises:
        ConfigurationError: there is no such log, or not exactly one is named.
    """
    if len(words) != 1:
        named = "no log is named" if not words else f"{len(words)} logs are named"
        raise ConfigurationError([error(RULE, "command", named, "orchestrator explain LOG, or explain RUN_DIR")])
    path = Path(os.path.expanduser(words[0]))  # noqa: PTH111 - Path's raises for unknown users
    attempt = newest_started(path) if path.is_dir() else None
    log = path if attempt is None else attempt.log_file
    try:
        lines = end_of_log(log)
    except OSError as problem:
        reason = "there is no log of a run in it" if path.is_dir() else problem.strerror
        fix = "name the file with the job's output, or the directory of a run"
        raise ConfigurationError([error(RULE, "command", f"{path}: {reason}", fix)]) from None
    diagnosis = diagnose(lines)
    memory = None if attempt is None else report_of_failure(attempt, diagnosis)
    return CommandResult(
        exit_code=OK,
        payload={"log": str(log), **diagnosis.to_dict(), "out_of_memory": None if memory is None else memory.to_dict()},
        text=[*text.diagnosis_report(diagnosis, log), *([] if memory is None else memory.text())],
    )
