"""For a training script of your own: what it may ask of the launch that started it, and tell it.

::

    from orchestrator import script

    for step, batch in enumerate(batches, start=1):
        loss = train_on(batch)
        script.report(step=step, loss=loss)
        if script.should_stop():
            save()
            script.report_checkpoint(path)
            break

Every rank may call everything; rank 0 is the one that is heard. In a script that runs by itself (``python train.py``) nothing
is reported and ``this_run()`` is None, so the same file does for both. A Hugging Face Trainer takes
``script.TrainerReport()`` among its callbacks. Importing this brings neither torch nor transformers.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

RESERVED = ("kind", "time", "step")
"""Names in an entry of the metrics that no reported number may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """The launch that this script is part of."""

    run_dir: Path
    attempt_dir: Path
    output_dir: Path
    """For what the script writes; it stays over all attempts of the run."""
    ds_config: Path
    """The compiled DeepSpeed JSON."""
    attempt: int
    """1 for the first start of the run; a script that goes on later finds its own checkpoints in ``output_dir``."""
    max_steps: int
    seed: int
    trainer_arguments: Mapping[str, Any]
    """For ``TrainingArguments(**run.trainer_arguments)``: all that has to agree with the JSON, its path and ``output_dir``."""


class Launch(Protocol):
    """What the process that runs the script offers it (``orchestrator/worker/script_launch.py``)."""

    @property
    def run(self) -> ScriptRun:
        """Where and what."""

    def report(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Take an entry of the metrics."""

    def report_checkpoint(self, path: Path) -> None:
        """Take note of a checkpoint."""

    def should_stop(self) -> bool:
        """Whether the run is to save and stop."""

    def lr_scheduler(self, optimizer: Any) -> Any:
        """The learning rate of ``lr_scheduler.*``."""


_launch: Launch | None = None


def join(launch: Launch) -> None:
    """Connect the functions of this module to ``launch``: for the process that runs the script, before it does."""
    global _launch
    _launch = launch


def this_run() -> ScriptRun | None:
    """The launch that this script is part of; None if it runs by itself."""
    return None if _launch is None else _launch.run


def report(*, step: int, **values: Any) -> None:
    """Record numbers of training after optimizer step ``step``: ``loss``, ``lr``, ``grad_norm``, ``tokens_per_second``, others.

    They go to ``metrics.jsonl`` and the progress of the run; the last ``loss`` is the run's metric unless there is a held-out
    one. From the first report on a run that does not report for ``launcher.hang_timeout`` counts as hung.

    Raises:
        TypeError: ``step`` is no whole number, or a value no number (a tensor with one element is).
    """
    _report("train", step, values)


def report_evaluation(*, step: int, **values: Any) -> None:
    """Record numbers of an evaluation after step ``step``. ``held_out_loss`` is the metric that sweeps compare by default.

    Raises:
        TypeError: ``step`` is no whole number, or a value no number.
    """
    _report("evaluate", step, values)


def report_checkpoint(path: str | os.PathLike[str]) -> None:
    """Say that a checkpoint is complete at ``path``; a run that was stopped names the last one."""
    if _launch is not None:
        _launch.report_checkpoint(Path(path).absolute())


def should_stop() -> bool:
    """Whether the run has been asked to save and stop (Ctrl-C, ``orchestrator stop``, a time limit).

    Every rank calls it after the same steps. All get the same answer once torch.distributed is initialized
    (``deepspeed.initialize`` does it); before that, each hears only what it has been told itself, which may come a step
    earlier or later on another. A script that never asks is ended without saving.
    """
    return _launch is not None and _launch.should_stop()


def lr_scheduler(optimizer: Any) -> Any:
    """The schedule of ``lr_scheduler.*`` for ``deepspeed.initialize(..., lr_scheduler=script.lr_scheduler)``.

    Raises:
        RuntimeError: the script runs by itself, and nobody has said what the schedule is.
    """
    if _launch is None:
        raise RuntimeError("orchestrator.script.lr_scheduler is there in a launch only; make a schedule of your own otherwise")
    return _launch.lr_scheduler(optimizer)


def __getattr__(name: str) -> Any:
    if name == "TrainerReport":
        from orchestrator.worker.trainer_report import TrainerReport

        return TrainerReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _report(kind: str, step: int, values: Mapping[str, Any]) -> None:
    numbers = {name: _number(name, value) for name, value in values.items() if value is not None}
    try:
        whole = operator.index(step)
    except TypeError:
        raise TypeError(f"step={step!r} is no whole number") from None
    if _launch is not None:
        _launch.report(kind, whole, numbers)


def _number(name: str, value: Any) -> float:
    if name in RESERVED:
        raise TypeError(f"{name!r} is a name of the orchestrator's own: report it under another")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}={value!r} is no number") from None
