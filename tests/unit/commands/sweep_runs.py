"""Sweeps whose runs are not started: what a run would leave is written at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import launch, sweep
from orchestrator.commands.launch import PreparedLaunch
from orchestrator.commands.result import INTERRUPTED, OK, RUN_FAILED, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.control import OUTCOME
from orchestrator.run_dir import LOG, METRICS, RESULT, newest_attempt, write_json

SMOKE = ("command=launch", "experiment=smoke", "preflight=none", "cluster.devices_per_host=1")
Behaviour = Callable[[RunConfig], str]
"""How the run of a configuration ends: completed, failed, interrupted, submitted, or killed (with all that controls it)."""


class KilledError(BaseException):
    """Stands for SIGKILL: nobody is left to write anything."""


@dataclass
class Runs:
    """The runs that were started, by the words that tell them apart."""

    behaviour: Behaviour = lambda _config: "completed"
    started: list[RunConfig] = field(default_factory=list)
    resume_tags: list[str | None] = field(default_factory=list)

    def start(self, prepared: PreparedLaunch, echo: Callable[[str], None], _show: Any) -> CommandResult:
        """In place of ``launch.start``."""
        echo("step 1/5")
        config = prepared.config
        self.started.append(config)
        self.resume_tags.append(prepared.resume_tag)
        attempt = launch._freeze(prepared)
        (attempt.path / LOG).touch()
        status = self.behaviour(config)
        if status == "killed":
            raise KilledError
        if status == "submitted":
            return CommandResult(exit_code=OK, payload={"status": status}, text=[])
        if status == "completed":
            return self.finish(prepared.run_dir, 5.0 + config.optimizer.lr)
        code = {"failed": RUN_FAILED, "interrupted": INTERRUPTED}[status]
        outcome = {"status": status, "reason": f"it {status}", "lines": ["Traceback", "ValueError: no luck"]}
        write_json(attempt.path / OUTCOME, outcome)
        return CommandResult(exit_code=code, payload=outcome, text=[])

    def finish(self, run_dir: Path, loss: float = 5.0) -> CommandResult:
        """What a run that ends well leaves in its newest attempt."""
        attempt = newest_attempt(run_dir)
        assert attempt is not None
        entry = {"kind": "train", "step": 5, "loss": loss + 1, "tokens_per_second": 7.0}
        (attempt.path / METRICS).write_text(json.dumps(entry) + "\n")
        write_json(attempt.path / RESULT, {"status": "completed", "held_out_loss": loss})
        outcome = {"status": "completed", "reason": "it completed"}
        write_json(attempt.path / OUTCOME, outcome)
        return CommandResult(exit_code=OK, payload=outcome, text=[])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The runs of the sweeps of a test."""
    made = Runs()
    monkeypatch.setattr(launch, "start", made.start)
    return made


def swept(sweep_dir: Path, *words: str, config_dir: Path | None = None, said: list[str] | None = None) -> CommandResult:
    """``launch -m WORDS`` in ``sweep_dir``."""
    given: Sequence[str] = [*words, f"hydra.sweep.dir={sweep_dir}"]
    return sweep.run(sweep.prepare(given, config_dir=config_dir), ([] if said is None else said).append)


def statuses(result: CommandResult) -> list[str]:
    """Of the points, in the order of their numbers."""
    return [point["status"] for point in result.payload["points"]]
