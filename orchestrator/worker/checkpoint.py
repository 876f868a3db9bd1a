"""Saving and loading the state of a training: DeepSpeed's own files, the random states, the position in the data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed

from orchestrator.checkpoints.catalogue import (
    Checkpoint,
    Manifest,
    clear_tag,
    complete_checkpoints,
    record_held_out_loss,
    remove_old,
    resume_findings,
    tag_of,
    write_manifest,
)
from orchestrator.deepspeed_config.resume import fixed_options
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Severity, error, has_error
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.nvme import restore_host_state
from orchestrator.worker.optimizer_settings import apply_settings, optimizer_settings
from orchestrator.worker.progress import say
from orchestrator.worker.random_states import load_random_states, save_random_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training stands: optimizer steps taken, and sequences they read."""

    step: int = 0
    consumed_samples: int = 0


def save_checkpoint(
    engine: Any,
    attempt: WorkerAttempt,
    spec: ModelSpec,
    position: Position,
    data_identity: Mapping[str, Any],
    *,
    held_out_loss: float | None = None,
) -> Path:
    """Save everything a resumed run needs; every rank calls it. The manifest comes last, then old checkpoints go.

    ``held_out_loss`` is what was measured at this position, if it was.
    """
    tag = tag_of(position.step)
    tag_dir = attempt.checkpoint_dir / tag
    if attempt.is_first:
        clear_tag(tag_dir)
        tag_dir.mkdir(parents=True)
    torch.distributed.barrier()
    save_random_states(_random_states_file(tag_dir, attempt.rank))
    state = {"position": asdict(position), "data_identity": dict(data_identity)}
    engine.save_checkpoint(str(attempt.checkpoint_dir), tag=tag, client_state=state)
    # DeepSpeed ends with a barrier, and every rank wrote its random states before: all files are there.
    if attempt.is_first:
        write_manifest(tag_dir, replace(_manifest(attempt, spec, position), held_out_loss=held_out_loss))
        _remove_old(attempt)
    torch.distributed.barrier()
    return tag_dir


def add_held_out_loss(attempt: WorkerAttempt, tag_dir: Path, loss: float) -> None:
    """Note what was measured after a checkpoint was saved, which may make it the best; rank 0 does it."""
    if attempt.is_first:
        record_held_out_loss(tag_dir, loss)
        _remove_old(attempt)


def load_checkpoint(engine: Any, attempt: WorkerAttempt, spec: ModelSpec, data_identity: Mapping[str, Any]) -> Position:
    """Restore the checkpoint that the attempt resumes from; every rank calls it.

    What the configuration says of the optimizer, the learning rate and the clipping stays in force.

    Raises:
        ConfigurationError: it is not there, or belongs to another model, layout, ZeRO stage, precision or data.
        RuntimeError: DeepSpeed did not load it.
    """
    checkpoint = _find(attempt)
    _check(checkpoint, attempt, spec)
    settings = optimizer_settings(engine)
    loaded, state = engine.load_checkpoint(str(attempt.checkpoint_dir), tag=checkpoint.tag)
    if loaded is None:
        raise RuntimeError(f"DeepSpeed did not load the checkpoint {checkpoint.path}")
    if engine.zero_nvme_offload_optimizer():
        restore_host_state(engine, attempt.checkpoint_dir, checkpoint.tag)
    apply_settings(engine, settings)
    _require_same_data(state["data_identity"], data_identity)
    load_random_states(_random_states_file(checkpoint.path, attempt.rank))
    position = Position(**state["position"])
    if position.step != checkpoint.manifest.step or engine.global_steps != position.step:
        raise RuntimeError(
            f"{checkpoint.path} contradicts itself: its manifest says step {checkpoint.manifest.step}, "
            f"its state {position.step}, DeepSpeed {engine.global_steps}"
        )
    return position


def _remove_old(attempt: WorkerAttempt) -> None:
    """What cannot be removed (a disk in trouble, other rights) is no reason to end a training whose checkpoint is complete."""
    checkpoint = attempt.config.checkpoint
    try:
        remove_old(attempt.checkpoint_dir, checkpoint.keep, keep_best=checkpoint.keep_best)
    except OSError as problem:
        say(f"warning: old checkpoints could not be removed: {problem}")


def _find(attempt: WorkerAttempt) -> Checkpoint:
    complete = complete_checkpoints(attempt.checkpoint_dir)
    for checkpoint in complete:
        if checkpoint.tag == attempt.resume_tag:
            return checkpoint
    known = ", ".join(checkpoint.tag for checkpoint in complete) or "none"
    message = f"{attempt.checkpoint_dir} has no complete checkpoint {attempt.resume_tag!r}; complete are: {known}"
    raise ConfigurationError(
        [error("resume", "checkpoint.resume", message, "resume from a complete checkpoint, or start a new run")]
    )


def _check(checkpoint: Checkpoint, attempt: WorkerAttempt, spec: ModelSpec) -> None:
    findings = resume_findings(
        checkpoint.manifest,
        layout=attempt.layout.to_dict(),
        boundaries=attempt.plan["partition"]["boundaries"],
        fixed_options=fixed_options(attempt.config),
        zero_stage=attempt.config.zero.stage,
        dtype=str(attempt.config.precision.dtype),
        model_name=spec.name,
        num_parameters=spec.num_parameters,
        hf_config=spec.hf_config,
        max_steps=attempt.config.training.max_steps,
    )
    if has_error(findings):
        raise ConfigurationError([finding for finding in findings if finding.severity is Severity.error])
    for finding in findings:
        say(f"{finding.severity}: {finding.message} ({finding.fix})")


def _require_same_data(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """The position counts sequences of a certain order; in another order some would be read twice and some never."""
    findings = []
    for field in sorted(saved.keys() | own.keys()):
        before, after = saved.get(field), own.get(field)
        if before != after:
            message = f"the checkpoint read its data with {before}, this run has {after}"
            findings.append(error("resume-data", field, message, f"restore {field}"))
    if findings:
        raise ConfigurationError(findings)


def _manifest(attempt: WorkerAttempt, spec: ModelSpec, position: Position) -> Manifest:
    return Manifest(
        step=position.step,
        consumed_samples=position.consumed_samples,
        layout=attempt.layout.to_dict(),
        boundaries=attempt.plan["partition"]["boundaries"],
        fixed_options=fixed_options(attempt.config),
        zero_stage=attempt.config.zero.stage,
        dtype=str(attempt.config.precision.dtype),
        model_name=spec.name,
        num_parameters=spec.num_parameters,
        hf_config=spec.hf_config,
        created=time.time(),
    )


def _random_states_file(tag_dir: Path, rank: int) -> Path:
    return tag_dir / f"random_states_rank_{rank:05d}.pt"
