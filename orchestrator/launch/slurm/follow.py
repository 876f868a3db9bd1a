"""Following a Slurm job from a login node: what it waits for, where it runs, and everything that it prints."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.launch.slurm.job import Job, JobState, SlurmError, job_state

_ASK_SECONDS = 5.0
"""Between two questions to Slurm's controller, which serves everybody."""
_READ_SECONDS = 0.5
_LATE_SECONDS = 1.0
"""What a job printed last may be seen so much later, over a network disk."""


def follow(job: Job, echo: Callable[[str], None], *, ask_seconds: float = _ASK_SECONDS) -> JobState | None:
    """Pass on what the job prints and every change of its state, until it will not run any more.

    Returns how Slurm says it ended; None if Slurm has forgotten it. A requeued job is followed through all its starts.
    """
    output = _Output(Path(job.output))
    told = ""
    runs = False
    asked = float("-inf")
    while True:
        lines = output.new_lines()
        # a job that prints runs: that is told before what it prints
        if (lines and not runs) or time.monotonic() - asked >= ask_seconds:
            asked = time.monotonic()
            try:
                state = job_state(job.job_id)
            except SlurmError as problem:
                is_over, now = False, f"Slurm does not answer, asking again ({problem})"
            else:
                is_over = state is None or state.is_over
                runs = state is not None and not state.is_waiting
                now = str(state or "Slurm does not know it any more")
            if is_over:
                time.sleep(_LATE_SECONDS)
                for line in [*lines, *output.new_lines()]:
                    echo(line)
                echo(f"job {job.job_id}: {now}")
                return state
            if now != told:
                told = now
                echo(f"job {job.job_id}: {now}")
        for line in lines:
            echo(line)
        time.sleep(_READ_SECONDS)


class _Output:
    """The growing output of a job, read line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def new_lines(self) -> list[str]:
        """Lines that have become whole since the last call; none while the file is not there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                added = file.read()
        except OSError:
            return []
        self._position += len(added)
        *lines, self._rest = (self._rest + self._decoder.decode(added)).split("\n")
        return [line.rstrip("\r") for line in lines]
