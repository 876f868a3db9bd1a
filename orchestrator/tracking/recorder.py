"""Rank 0's side of the recorder: starts the process, tells it of checkpoints and of the end, and waits for it, not for ever."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.run_dir import WANDB, read_json
from orchestrator.tracking.tracker import RunDescription

OUTPUT = "recorder.log"
"""What W&B and TensorBoard print, in the attempt's directory."""
SECONDARY = "--secondary"
TEMPORARY = "recorder-"
"""Begins the name of a recorder's temporary folder. What W&B leaves there goes with it, whichever of the two is killed."""
FAILED_SECONDS = 8.0
"""How long a failed run waits: every other rank stands still until this one has gone."""
_SLACK_SECONDS = 5.0
_SIGN_SECONDS = 2.0
_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "WANDB_SERVICE")
"""Variables that are not the recorder's: it is no rank, and W&B's service of an agent is that of another host."""


class RecorderTracker:
    """Lets a process of its own record the run wherever ``tracking`` says beside ``metrics.jsonl``.

    Nothing here waits for a server before the end. ``log`` does nothing: the recorder reads the metrics file. ``primary`` is
    rank 0's; the others, one a host, add their host's system metrics to a shared W&B run. ``waits`` is called again and again
    while ``finish`` waits.
    """

    def __init__(
        self,
        config: TrackingConfig,
        *,
        run_id: str,
        say: Callable[[str], None],
        waits: Callable[[], None],
        primary: bool = True,
    ) -> None:
        self._waits = waits
        self._config = config
        self._run_id = run_id
        self._say = say
        self._primary = primary
        self._process: subprocess.Popen[bytes] | None = None
        self._attempt_dir = Path()
        self._temporary = ""
        self._summary: Mapping[str, Any] = {}

    @property
    def record(self) -> dict[str, Any] | None:
        """What W&B has: mode, directory, id and url of the run, and whether it is uploaded; None if it has nothing."""
        path = self._attempt_dir / WANDB
        return read_json(path) if self._process is not None and path.exists() else None

    def start(self, description: RunDescription) -> None:
        """Start the recorder, if anything is to be recorded."""
        config, self._attempt_dir = self._config, description.attempt_dir
        if config.wandb is WandbMode.disabled and not config.csv and not config.tensorboard:
            return
        command = [sys.executable, "-P", "-m", "orchestrator.tracking.process", str(description.attempt_dir)]
        try:
            self._temporary = tempfile.mkdtemp(prefix=TEMPORARY)
            self._process = subprocess.Popen(
                command if self._primary else [*command, SECONDARY],
                stdin=subprocess.PIPE,
                env=recorder_environment(os.environ, self._run_id) | {"TMPDIR": self._temporary},
                process_group=0,
            )
        except OSError as problem:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._say(f"only metrics.jsonl is recorded: the recorder cannot be started: {problem.strerror}")
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def log(self, entry: Mapping[str, Any]) -> None:
        """Nothing: the recorder reads ``metrics.jsonl``."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Tell the recorder."""
        self._tell({"checkpoint": str(path), "step": step})

    def summary(self, values: Mapping[str, Any]) -> None:
        """Keep the values for the end."""
        self._summary = values

    def finish(self, *, failed: bool) -> None:
        """Let the recorder close everything, and wait for it: at most the two time limits of W&B, or 8 s if the run failed."""
        if (process := self._process) is None or process.returncode is not None:
            return
        self._tell({"failed": failed, "summary": dict(self._summary)})
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        seconds = FAILED_SECONDS if failed else longest_seconds(self._config) + _SLACK_SECONDS
        code = self._ended(process, seconds)
        if code is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)
        if code != 0:
            self._say(f"W&B, TensorBoard or csv may lack the end of the run: see {OUTPUT}; metrics.jsonl has everything")

    def _ended(self, process: subprocess.Popen[bytes], seconds: float) -> int | None:
        """The exit code of the recorder; None if it goes on for longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, _SIGN_SECONDS))
            self._waits()
        return process.poll()

    def _tell(self, order: Mapping[str, Any]) -> None:
        """Write a line that fits into the pipe even if nobody reads it now."""
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError, ValueError):
            os.write(self._process.stdin.fileno(), json.dumps(order).encode() + b"\n")


def longest_seconds(tracking: TrackingConfig) -> float:
    """How long the records may take to close: W&B may still have to open its run."""
    return tracking.init_timeout_seconds + tracking.finish_timeout_seconds


def recorder_environment(environment: Mapping[str, str], run_id: str) -> dict[str, str]:
    """What the recorder gets of a rank's variables.

    Under ``wandb agent`` W&B takes the id of the run from the environment alone, and wants the agent's file of parameters,
    which only the agent's own host has.
    """
    root = str(Path(__file__).parents[2])
    kept = {name: value for name, value in environment.items() if name not in _OF_A_RANK}
    kept["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [kept.get("PYTHONPATH")])])
    # W&B's reports on itself, which a dead network would hold up at the end
    kept.setdefault("WANDB_ERROR_REPORTING", "false")
    kept.pop("WANDB_RUN_ID", None)
    if kept.get("WANDB_SWEEP_ID"):
        kept["WANDB_RUN_ID"] = run_id
    if not Path(kept.get("WANDB_SWEEP_PARAM_PATH", "/")).exists():
        del kept["WANDB_SWEEP_PARAM_PATH"]
    return kept
