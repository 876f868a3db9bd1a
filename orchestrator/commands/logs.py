"""``logs``: the log of a run, and what is added to it until the run has ended."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.text import Text

from orchestrator.commands.result import OK, RUN_FAILED, CommandResult
from orchestrator.config.enums import Output
from orchestrator.config.schema import RunConfig
from orchestrator.control import OUTCOME
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.launch.ending.diagnosis import MOST_BYTES
from orchestrator.launch.processes import PROGRESS
from orchestrator.launch.run_state import State, state_of
from orchestrator.lease import EXPIRE_SECONDS
from orchestrator.run_dir import Attempt

HELP = """Show the log of a run: the last lines, and with follow=true everything more until the run has ended.

Ctrl-C ends the following, never the run. Without a name the newest run under runs/ is meant.
When a run that was followed has failed the exit code is 4.

Examples:
  orchestrator logs
  orchestrator logs runs/books follow=true
  orchestrator logs runs/books rank=3 last=200"""

RULE = "logs"
_POLL_SECONDS = 0.5
_RANK = re.compile(r"(?:^|: )\s*\[(?:rank)?(\d+)\]:")
"""How torch and our workers begin the lines of a rank, behind the name of a host."""


def run(config: RunConfig, attempt: Attempt, echo: Callable[[str], None]) -> CommandResult:
    """Show the log of ``attempt``, each line by ``echo`` or, as JSON, all in one object.

    Raises:
        ConfigurationError: what is asked for is not there, or makes no sense.
    """
    findings = list(_findings(config, attempt))
    if findings:
        raise ConfigurationError(findings)
    payload = {"run_dir": str(attempt.run_dir), "attempt": attempt.number, "log": str(attempt.log_file)}
    log = _Log(attempt.log_file, rank=config.rank, last=config.last)
    if not config.follow:
        lines = list(log.last())
        if config.output is Output.json:
            return CommandResult(exit_code=OK, payload={**payload, "lines": lines}, text=[])
        for line in lines:
            echo(line)
        return CommandResult(exit_code=OK, payload=payload, text=[])
    try:
        state, reason = _follow(log, attempt, echo)
    except KeyboardInterrupt:
        return CommandResult(exit_code=OK, payload=payload, text=[Text("the run goes on; orchestrator stop ends it")])
    ended = Text(f"{state.value}: {reason}", style="bold red" if state.is_bad else "bold")
    return CommandResult(exit_code=RUN_FAILED if state.is_bad else OK, payload=payload, text=[ended])


def _findings(config: RunConfig, attempt: Attempt) -> Iterator[Finding]:
    if config.last < 0:
        yield error(RULE, "last", f"last is {config.last}", "set a number of lines, or 0 for all")
    if config.follow and config.output is Output.json:
        yield error(RULE, "output", "what goes on is no JSON object", "drop follow, or output=json")
    if not config.follow and not attempt.log_file.exists():
        message = f"attempt {attempt.number} of {attempt.run_dir} has printed nothing yet"
        yield error(RULE, "run_dir", message, "wait for it with follow=true; orchestrator status says how it stands")


def _follow(log: _Log, attempt: Attempt, echo: Callable[[str], None]) -> tuple[State, str | None]:
    """Show lines until the run is over. Whether its controller lives is only asked when nothing is printed."""
    heard = time.monotonic()
    for line in log.last():
        echo(line)
    while True:
        ending = (attempt.path / OUTCOME).exists()
        lines = list(log.more())
        for line in lines:
            echo(line)
        if lines:
            heard = time.monotonic()
        elif ending or time.monotonic() - heard > EXPIRE_SECONDS:
            state, reason = state_of(attempt.path)
            if state.is_over:
                return state, reason
            heard = time.monotonic()
        time.sleep(_POLL_SECONDS)


class _Log:
    """The lines of a growing file that are wanted, each once it is complete. The file may not be there yet."""

    def __init__(self, path: Path, *, rank: int | None, last: int) -> None:
        self._path = path
        self._rank = rank
        self._last = last
        self._offset = 0
        self._part = b""

    def last(self) -> Iterator[str]:
        """The last lines so far, and one that is not complete; of a file above 64 MiB they are looked for at its end."""
        if self._last == 0:
            yield from self.more()
            return
        if self._path.exists():
            self._offset = max(self._path.stat().st_size - MOST_BYTES, 0)
        yield from deque(self.more(), maxlen=self._last)

    def more(self) -> Iterator[str]:
        """The lines that have been added since."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for line in file:
                self._offset += len(line)
                self._part += line
                if self._part.endswith(b"\n"):
                    text, self._part = self._part.decode("utf-8", errors="replace").rstrip("\r\n"), b""
                    if self._is_wanted(text):
                        yield text

    def _is_wanted(self, line: str) -> bool:
        if self._rank is None:
            return True
        match = _RANK.search(line)
        return int(match[1]) == self._rank if match else self._rank == 0 and PROGRESS in line
