"""``status``: how a run stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.checkpoints.catalogue import Checkpoint, newest
from orchestrator.commands.result import OK, RUN_FAILED, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.launch.run_state import RunState, read_run_state
from orchestrator.report.run_state import run_state_report
from orchestrator.run_dir import Attempt, checkpoint_dir

HELP = """Say how a run stands: its state, step and rate, its hosts, the newest metrics and checkpoint.

It reads the files of the run, so it works on any host that sees them. Without a name the newest run under runs/ is meant.
The exit code is 4 when the run has failed or its controller has gone, and 0 otherwise.

Examples:
  orchestrator status
  orchestrator status runs/books
  orchestrator status runs/books output=json"""


def run(_config: RunConfig, attempt: Attempt, _echo: Callable[[str], None]) -> CommandResult:
    """Report on ``attempt``."""
    state = read_run_state(attempt)
    checkpoint = newest(checkpoint_dir(attempt.run_dir))
    report = run_state_report(
        state,
        run=f"{attempt.run_dir}, attempt {attempt.number}",
        log=str(attempt.log_file),
        checkpoint=None if checkpoint is None else str(checkpoint.path),
    )
    exit_code = RUN_FAILED if state.state.is_bad else OK
    return CommandResult(exit_code=exit_code, payload=_payload(attempt, state, checkpoint), text=report)


def _payload(attempt: Attempt, state: RunState, checkpoint: Checkpoint | None) -> dict[str, Any]:
    controller, progress = state.controller, state.progress
    return {
        "run_dir": str(attempt.run_dir),
        "attempt": attempt.number,
        "state": state.state,
        "reason": state.reason,
        "step": state.step,
        "max_steps": state.max_steps,
        "phase": None if progress is None else progress.phase,
        "silent_seconds": state.silent_seconds,
        "step_seconds": state.step_seconds,
        "remaining_seconds": state.remaining_seconds,
        "controller": None
        if controller is None
        else {
            "host": controller.host,
            "pid": controller.pid,
            "started": controller.started,
            "backend": controller.backend,
            "detached": controller.detached,
        },
        "hosts": [
            {"host": host.name, "ranks": list(host.ranks), "started": host.started, "exit_code": host.exit_code}
            for host in state.hosts
        ],
        "last_step": state.trained,
        "last_evaluation": state.evaluated,
        "checkpoint": None if checkpoint is None else {"path": str(checkpoint.path), "step": checkpoint.manifest.step},
        "log": str(attempt.log_file),
    }
