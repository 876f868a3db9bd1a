"""The training loop: steps, and between them metrics, evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator

from orchestrator.checkpoints.catalogue import tag_of
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.presence import Phase
from orchestrator.tracking.tracker import Tracker
from orchestrator.units import format_seconds
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.bubble import bubble_fraction
from orchestrator.worker.checkpoint import Position, add_held_out_loss, save_checkpoint
from orchestrator.worker.data.batches import BatchReader
from orchestrator.worker.evaluate import HeldOutLosses
from orchestrator.worker.evaluations import Evaluations, earlier_best
from orchestrator.worker.memory import memory_peak
from orchestrator.worker.metrics import StepOutcome, Throughput, step_line, train_entry
from orchestrator.worker.progress import ProgressSigns, say
from orchestrator.worker.step import SkippedSteps, training_step
from orchestrator.worker.step_profile import StepProfiles
from orchestrator.worker.stop import StopAgreement


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Everything a training works with. ``stop`` is there if a run that is stopped saves.

    ``tracker`` is there on rank 0, for a shared W&B run on one rank of every host.
    """

    attempt: WorkerAttempt
    spec: ModelSpec
    engine: Any
    reader: BatchReader
    data_identity: Mapping[str, Any]
    throughput: Throughput
    tracker: Tracker | None
    progress: ProgressSigns
    stop: StopAgreement | None
    profiles: StepProfiles


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """How a training ended. Losses are None if there was nothing to train on or to measure; who is stopped measures nothing.

    ``trained_steps`` and ``step_seconds`` are those of this attempt; evaluations and checkpoints are not in the time.
    """

    position: Position
    final_loss: float | None
    held_out: HeldOutLosses
    best: dict[str, Any] | None
    """The evaluation with the lowest held-out loss: its step, its loss and its checkpoint, if that is there."""
    trained_steps: int
    step_seconds: float
    checkpoint: Path | None
    """The newest of this attempt; None if it wrote none."""
    stopped: bool
    """Whether it was asked to stop before its last step."""


def train(training: Training, position: Position) -> TrainingOutcome:
    """Train from ``position`` to the last step, or to the one in hand when the run is asked to stop; every rank calls it.

    Raises:
        FloatingPointError: the training has diverged.
    """
    config = training.attempt.config
    batch_size = training.attempt.layout.train_batch_size
    first_step, last_seconds, total_seconds, final_loss = position.step, 0.0, 0.0, None
    seconds_since_log: list[float] = []
    checkpoint: Path | None = None
    stopped = False
    evaluations = _evaluations(training)
    skipped = SkippedSteps(precision=config.precision)
    if config.training.evaluate_at_start and position.step == 0:
        evaluations.measure(0)
    training.progress.enter(Phase.train, step=position.step)
    while position.step < config.training.max_steps and not (stopped := _is_stopped(training, last_seconds)):
        with training.profiles.of_step(position.step + 1):
            outcome, last_seconds = _step(training, position)
        seconds_since_log.append(last_seconds)
        total_seconds += last_seconds
        position = Position(step=position.step + 1, consumed_samples=position.consumed_samples + batch_size)
        training.progress.enter(Phase.train, step=position.step)
        is_last = position.step == config.training.max_steps
        final_loss = final_loss if outcome.skipped else outcome.loss
        if is_last or position.step % config.training.log_every == 0:
            _log_step(training, position, outcome, sum(seconds_since_log) / len(seconds_since_log))
            seconds_since_log.clear()
        skipped.count(outcome, step=position.step)
        is_evaluated = not is_last and _is_due(position.step, config.training.evaluate_every)
        is_best = is_evaluated and evaluations.measure(position.step)
        is_regular = _is_due(position.step, config.checkpoint.save_every) or (is_last and config.checkpoint.save_at_end)
        if is_regular or (is_best and config.checkpoint.keep_best):
            checkpoint = _save(training, position, evaluations.loss_at(position.step))
    if stopped and position.step > first_step and not _is_of(checkpoint, position):
        checkpoint = _save(training, position)
    if not stopped:
        checkpoint = _evaluate_at_end(training, position, evaluations, checkpoint)
    return TrainingOutcome(
        position=position,
        final_loss=final_loss,
        held_out=HeldOutLosses() if stopped else evaluations.last,
        best=evaluations.best_entry(),
        trained_steps=position.step - first_step,
        step_seconds=total_seconds,
        checkpoint=checkpoint,
        stopped=stopped,
    )


def _step(training: Training, position: Position) -> tuple[StepOutcome, float]:
    """The step behind ``position``, and its seconds."""
    started = time.monotonic()
    outcome = training_step(training.engine, training.reader.training_step(position.consumed_samples), training.attempt.layout)
    # The device works behind our back; a step has taken the time until it is done.
    get_accelerator().synchronize()
    return outcome, time.monotonic() - started


def _is_stopped(training: Training, step_seconds: float) -> bool:
    return training.stop is not None and training.stop.is_reached(step_seconds)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _log_step(training: Training, position: Position, outcome: StepOutcome, step_seconds: float) -> None:
    bubble = bubble_fraction(training.engine)
    if training.tracker is None:
        return
    rates = training.throughput.rates(step_seconds)
    entry = train_entry(
        position.step,
        outcome,
        step_seconds=step_seconds,
        rates=rates,
        memory_bytes=memory_peak().peak_bytes,
        consumed_samples=position.consumed_samples,
        bubble_fraction=bubble,
    )
    training.tracker.log(entry)
    max_steps = training.attempt.config.training.max_steps
    tokens_per_second = rates["tokens_per_second"]
    say(step_line(position.step, max_steps, outcome, step_seconds=step_seconds, tokens_per_second=tokens_per_second))


def _evaluations(training: Training) -> Evaluations:
    return Evaluations(
        attempt=training.attempt,
        engine=training.engine,
        reader=training.reader,
        tracker=training.tracker,
        advanced=partial(training.progress.enter, Phase.evaluate),
        best=None if training.attempt.resume_tag is None else earlier_best(training.attempt.checkpoint_dir),
    )


def _evaluate_at_end(training: Training, position: Position, evaluations: Evaluations, checkpoint: Path | None) -> Path | None:
    """The last evaluation, after the last checkpoint, which learns of it; or it is saved for being the best.

    What a run with nothing left to train was resumed from is never written again: it may be the only checkpoint there is.
    """
    is_best = evaluations.measure(position.step)
    loss = evaluations.loss_at(position.step)
    tag = tag_of(position.step)
    if _is_of(checkpoint, position) or training.attempt.resume_tag == tag:
        if loss is not None:
            add_held_out_loss(training.attempt, training.attempt.checkpoint_dir / tag, loss)
    elif is_best and training.attempt.config.checkpoint.keep_best:
        return _save(training, position, loss)
    return checkpoint


def _is_of(checkpoint: Path | None, position: Position) -> bool:
    return checkpoint is not None and checkpoint.name == tag_of(position.step)


def _save(training: Training, position: Position, held_out_loss: float | None = None) -> Path:
    started = time.monotonic()
    training.progress.enter(Phase.save)
    path = save_checkpoint(
        training.engine,
        training.attempt,
        training.spec,
        position,
        training.data_identity,
        held_out_loss=held_out_loss,
    )
    training.progress.enter(Phase.train)
    if training.tracker is not None:
        training.tracker.checkpoint(path, position.step)
    say(f"step {position.step}  checkpoint {path}  {format_seconds(time.monotonic() - started)}")
    return path
