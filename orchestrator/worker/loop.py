"""The training loop: steps, and between them metrics, evaluations and checkpoints."""

from __future__ import annotations

import math
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
from orchestrator.worker.checkpoint import Position, save_checkpoint
from orchestrator.worker.data.batches import BatchReader
from orchestrator.worker.evaluate import held_out_loss
from orchestrator.worker.memory import memory_peak
from orchestrator.worker.metrics import StepOutcome, Throughput, diverged, evaluate_entry, perplexity, step_line, train_entry
from orchestrator.worker.progress import ProgressSigns, say
from orchestrator.worker.step import training_step
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
    held_out_loss: float | None
    trained_steps: int
    step_seconds: float
    checkpoint: Path | None
    """The newest of this attempt; None if it wrote none."""
    stopped: bool
    """Whether it was asked to stop before its last step."""


def train(training: Training, position: Position) -> TrainingOutcome:
    """Train from ``position`` to the last step, or to the one in hand when the run is asked to stop; every rank calls it."""
    config = training.attempt.config
    batch_size = training.attempt.layout.train_batch_size
    first_step, last_seconds, total_seconds, final_loss = position.step, 0.0, 0.0, None
    seconds_since_log: list[float] = []
    checkpoint: Path | None = None
    stopped = False
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
        if not is_last and _is_due(position.step, config.training.evaluate_every):
            _evaluate(training, position)
        if _is_due(position.step, config.checkpoint.save_every) or (is_last and config.checkpoint.save_at_end):
            checkpoint = _save(training, position)
    if stopped and position.step > first_step and (checkpoint is None or checkpoint.name != tag_of(position.step)):
        checkpoint = _save(training, position)
    return TrainingOutcome(
        position=position,
        final_loss=final_loss,
        held_out_loss=None if stopped else _evaluate(training, position),
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


def _evaluate(training: Training, position: Position) -> float | None:
    started = time.monotonic()
    max_sequences = training.attempt.config.training.evaluate_sequences
    advanced = partial(training.progress.enter, Phase.evaluate)
    loss = held_out_loss(training.engine, training.reader, max_sequences=max_sequences, advanced=advanced)
    if loss is not None and not math.isfinite(loss):
        raise diverged("held-out loss", loss, step=position.step)
    if loss is not None and training.tracker is not None:
        training.tracker.log(evaluate_entry(position.step, loss))
        duration = format_seconds(time.monotonic() - started)
        say(f"step {position.step}  held-out loss {loss:.4f}  perplexity {perplexity(loss):.2f}  {duration}")
    return loss


def _save(training: Training, position: Position) -> Path:
    started = time.monotonic()
    training.progress.enter(Phase.save)
    path = save_checkpoint(training.engine, training.attempt, training.spec, position, training.data_identity)
    training.progress.enter(Phase.train)
    if training.tracker is not None:
        training.tracker.checkpoint(path, position.step)
    say(f"step {position.step}  checkpoint {path}  {format_seconds(time.monotonic() - started)}")
    return path
