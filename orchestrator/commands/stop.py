"""``stop``: end a run from wherever its directory is seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.commands.result import OK, RUN_FAILED, CommandResult
from orchestrator.config.load import shell_word
from orchestrator.config.schema import RunConfig
from orchestrator.control import Stop, read_outcome, read_stop, request_stop
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.launch.run_state import State, state_of
from orchestrator.presence import read_progress
from orchestrator.run_dir import Attempt

HELP = """End a run: ask its controller to, wait until everything has ended, and say how.

The run saves a checkpoint first if checkpoint.save_on_stop says so; now=true ends it at once. Nothing is killed from
here: it works on any host that sees the run directory. Ctrl-C ends the waiting; the run ends all the same.
The exit code is 0 when the run has ended, and 4 when it failed, or its controller had gone before.

Examples:
  orchestrator stop
  orchestrator stop runs/books
  orchestrator stop runs/books now=true"""

RULE = "stop"
_POLL_SECONDS = 0.5


def run(config: RunConfig, attempt: Attempt, echo: Callable[[str], None]) -> CommandResult:
    """Stop ``attempt``.

    Raises:
        ConfigurationError: it has not been started, or its directory cannot be written to.
    """
    state, reason = state_of(attempt.path)
    if state is State.not_started:
        message = f"attempt {attempt.number} of {attempt.run_dir} has not been started"
        raise ConfigurationError([error(RULE, "run_dir", message, "nothing has to be stopped")])
    if state.is_over:
        return _result(attempt, state, reason, already=True)
    _ask(attempt.path, Stop.now if config.now else Stop.save)
    echo(f"{attempt.run_dir} is asked to end{' at once' if config.now else ''}")
    try:
        state, reason = _wait(attempt.path, echo)
    except KeyboardInterrupt:
        echo("it ends without us; orchestrator status says how far it is")
        raise
    return _result(attempt, state, reason, already=False)


def _ask(attempt: Path, how: Stop) -> None:
    if read_stop(attempt) is Stop.now:
        return
    try:
        request_stop(attempt, how)
    except OSError as problem:
        message = f"{attempt} cannot be written to: {problem.strerror}"
        fix = "be the user who started it, or press Ctrl-C where it was started"
        raise ConfigurationError([error(RULE, "run_dir", message, fix)]) from None


def _wait(attempt: Path, echo: Callable[[str], None]) -> tuple[State, str | None]:
    """Until it is over; says what it does meanwhile. The lease moves to the end, and tells a controller that dies now."""
    said: State | None = None
    while True:
        state, reason = state_of(attempt)
        if state.is_over:
            return state, reason
        if state is not said and state in (State.saving, State.stopping):
            progress = read_progress(attempt)
            echo(state.value if progress is None else f"{state.value}, step {progress.step}")
            said = state
        time.sleep(_POLL_SECONDS)


def _result(attempt: Attempt, state: State, reason: str | None, *, already: bool) -> CommandResult:
    saved = (read_outcome(attempt.path) or {}).get("saved")
    progress = read_progress(attempt.path)
    payload: dict[str, Any] = {
        "run_dir": str(attempt.run_dir),
        "attempt": attempt.number,
        "state": state,
        "reason": reason,
        "step": 0 if progress is None else progress.step,
        "saved": saved,
        "already": already,
    }
    if state is State.abandoned:
        lines = [f"{reason}: nobody is there to stop it, and its ranks have ended by their lease within 30 s"]
    else:
        lines = [f"{'it had ended before' if already else 'ended'}: {state.value}; {reason}"]
    if saved is not None:
        lines.append(f"checkpoint: {saved}")
        lines.append(f"go on with: orchestrator launch {shell_word('run_dir', attempt.run_dir)} checkpoint.resume=true")
    style = "bold red" if state.is_bad else "bold"
    text = [Text(lines[0], style=style), *(Text(line) for line in lines[1:])]
    return CommandResult(exit_code=RUN_FAILED if state.is_bad else OK, payload=payload, text=text)
