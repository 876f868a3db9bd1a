"""What a training script of the user's own sees of its launch, and what is kept of its reports. No torch before the script."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

from orchestrator.deepspeed_config.trainer_arguments import trainer_arguments
from orchestrator.presence import Phase
from orchestrator.run_dir import SCRIPT_OUTPUT
from orchestrator.script import RESERVED, ScriptRun
from orchestrator.tracking.description import describe
from orchestrator.tracking.measured import result_summary
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.metrics import perplexity
from orchestrator.worker.progress import ProgressSigns, say
from orchestrator.worker.tracking import tracking_of


class ScriptLaunch:
    """One rank's side of ``orchestrator.script``."""

    def __init__(self, attempt: WorkerAttempt, *, stop: Event) -> None:
        self._attempt = attempt
        self._stop = stop
        self._agreement: Any = None
        self._progress = ProgressSigns(attempt.path)
        self._phase = Phase.script
        self._progress.enter(self._phase)
        self._tracking = tracking_of(attempt, waits=lambda: self._progress.enter(Phase.end))
        self._tracker = self._tracking.tracker
        if self._tracker is not None:
            self._tracker.start(describe(attempt.path))
        self._run = _script_run(attempt)
        self._started = time.time()
        self._last: float | None = None
        """When the last training entry came."""
        self._asked: float | None = None
        self.step = 0
        """The last one that was reported."""
        self.values: dict[str, float | None] = {}
        """The last value of each name; None where it is not finite."""
        self.checkpoint: Path | None = None
        self.stopped = False
        """Whether the script was told to stop."""

    @property
    def run(self) -> ScriptRun:
        """Where and what."""
        return self._run

    def report(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Take an entry of the metrics, and show that the run gets on.

        ``step_seconds`` of a training entry is the time since the one before, evaluations and checkpoints included, shared by
        the steps between; the first has none.
        """
        if self._tracker is None:
            return
        entry: dict[str, Any] = {"kind": kind, "step": step, **values}
        if kind == "train":
            now = time.monotonic()
            if self._last is not None:
                entry.setdefault("step_seconds", (now - self._last) / max(step - self.step, 1))
            self._last = now
        elif "held_out_loss" in values:
            entry.setdefault("perplexity", perplexity(values["held_out_loss"]))
        self._tracker.log({**entry, "time": time.time()})
        self.values |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        self.step = max(self.step, step)
        self._progress.enter(self._phase, step=self.step)
        say(f"step {step}/{self._run.max_steps}  " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()))

    def report_checkpoint(self, path: Path) -> None:
        """Take note of a checkpoint."""
        self.checkpoint = path
        if self._tracker is not None:
            self._tracker.checkpoint(path, self.step)

    def should_stop(self) -> bool:
        """Whether the run is to save and stop. From now on it is a run that saves when it is asked to stop."""
        self._phase = Phase.train
        now = time.monotonic()
        seconds = 0.0 if self._asked is None else now - self._asked
        self._asked = now
        self.stopped = self.stopped or self._is_agreed(seconds)
        return self.stopped

    def lr_scheduler(self, optimizer: Any) -> Any:
        """The schedule of ``lr_scheduler.*``."""
        from orchestrator.worker.lr_schedule import lr_scheduler_factory

        return lr_scheduler_factory(self._attempt.config)(optimizer)

    def read_trainer_state(self) -> None:
        """Where the script has reported nothing: take what a Hugging Face Trainer has left in ``output_dir`` of its history."""
        states = [self._run.output_dir / "trainer_state.json", *self._run.output_dir.glob("checkpoint-*/trainer_state.json")]
        written = [path for path in states if path.is_file() and path.stat().st_mtime >= self._started]
        if self._tracker is None or self.step > 0 or not written:
            return
        newest = max(written, key=lambda path: path.stat().st_mtime)
        for kind, step, values in _history(newest):
            self._tracker.log({"kind": kind, "step": step, **values})
            self.values |= {name: value if math.isfinite(value) else None for name, value in values.items()}
            self.step = max(self.step, step)

    def waiting(self, phase: Phase) -> None:
        """Show that what comes after the script gets on."""
        self._progress.enter(phase)

    def close(self, result: Mapping[str, Any]) -> dict[str, Any] | None:
        """Close the records of a run that has ended well; what W&B has of it."""
        if self._tracker is not None:
            self._tracker.summary(result_summary(result))
            self._tracker.finish(failed=False)
        return self._tracking.wandb

    def _is_agreed(self, seconds: float) -> bool:
        """Whether any rank has been asked; alone, or before the ranks have met, each speaks for itself."""
        torch = sys.modules.get("torch")
        if self._attempt.layout.world_size == 1 or torch is None or not torch.distributed.is_initialized():
            return self._stop.is_set()
        if self._agreement is None:
            from deepspeed.accelerator import get_accelerator

            from orchestrator.worker.stop import StopAgreement

            self._agreement = StopAgreement(self._stop, torch.device(get_accelerator().current_device_name()))
        return bool(self._agreement.is_reached(seconds))


def _history(path: Path) -> list[tuple[str, int, dict[str, float]]]:
    """Kind, step and numbers of what a Trainer has logged; none of a file that is broken: the training has ended well."""
    try:
        history = [
            (*entry_of_log(logged), int(logged["step"]))
            for logged in json.loads(path.read_text(encoding="utf-8"))["log_history"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        say(f"the history in {path} cannot be read: {type(problem).__name__}: {problem}")
        return []
    return [(kind, step, values) for kind, values, step in history if values]


def entry_of_log(logged: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """A line of a Trainer's log as an entry of the metrics: its kind, and its numbers by our names; none of a mere summary.

    Of several evaluation sets the Trainer logs one after the other, as ``eval_NAME_loss``: ours is ``held_out_loss/NAME``.
    """
    numbers = {name: float(value) for name, value in logged.items() if isinstance(value, int | float) and name not in RESERVED}
    prefix = next((name.removesuffix("loss") for name in numbers if _is_of_evaluation(name, numbers)), None)
    if prefix is not None:
        return "evaluate", {_evaluated_name(name, prefix): value for name, value in numbers.items()}
    if "loss" not in numbers:
        return "train", {}
    return "train", {_NAMES.get(name, name): value for name, value in numbers.items()}


_NAMES = {"learning_rate": "lr"}
_EVALUATED_NAMES = {"loss": "held_out_loss", "runtime": "seconds"}


def _is_of_evaluation(name: str, numbers: Mapping[str, float]) -> bool:
    """Whether it is the loss of a set: that has its runtime beside it, which other numbers by the name of a loss have not."""
    is_loss = name.startswith("eval_") and name.endswith("_loss")
    return name == "eval_loss" or (is_loss and f"{name.removesuffix('loss')}runtime" in numbers)


def _evaluated_name(name: str, prefix: str) -> str:
    """Our name of a number of the set whose names the Trainer begins with ``prefix``: ``eval_``, or ``eval_NAME_``."""
    bare = name.removeprefix(prefix)
    if bare == name or bare in RESERVED:
        return name
    of_set = prefix.removeprefix("eval_").removesuffix("_")
    ours = _EVALUATED_NAMES.get(bare, bare)
    return f"{ours}/{of_set}" if of_set else ours


def _script_run(attempt: WorkerAttempt) -> ScriptRun:
    output_dir, ds_config = attempt.run_dir / SCRIPT_OUTPUT, attempt.path / "ds_config.json"
    arguments = {
        "output_dir": str(output_dir),
        "deepspeed": str(ds_config),
        **trainer_arguments(attempt.config, attempt.ds_config),
    }
    return ScriptRun(
        run_dir=attempt.run_dir,
        attempt_dir=attempt.path,
        output_dir=output_dir,
        ds_config=ds_config,
        attempt=attempt.number,
        max_steps=attempt.config.training.max_steps,
        seed=attempt.config.seed,
        trainer_arguments=arguments,
    )
