"""Disk that checkpoints take: one of them, and as many as are kept.

DeepSpeed writes the 16-bit parameters once for each tensor- and pipeline-parallel rank, from the first data-parallel replica,
and the optimizer states from every rank that holds a shard of them (``engine.py:_save_checkpoint``, ``_save_zero_checkpoint``).
At stage 3 the fp32 shards are the parameters, and no 16-bit copy is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.config.training import CheckpointConfig, TrainingConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.memory.device import StageLoad
from orchestrator.planning.memory.states import rank_states
from orchestrator.planning.parameters import Size
from orchestrator.units import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDisk:
    """Bytes of the checkpoint folder of a run."""

    parameters: int
    """16-bit parameters in one checkpoint."""
    optimizer_states: int
    """Optimizer states in one checkpoint."""
    kept: int
    """Checkpoints that stay at the end."""
    at_once: int
    """Checkpoints that are there while the next is written: an old one goes when the new one is complete."""

    @property
    def checkpoint_bytes(self) -> int:
        """One checkpoint."""
        return self.parameters + self.optimizer_states

    @property
    def kept_bytes(self) -> int:
        """Those that stay."""
        return self.kept * self.checkpoint_bytes

    @property
    def peak_bytes(self) -> int:
        """The most the folder takes."""
        return self.at_once * self.checkpoint_bytes

    def to_dict(self) -> dict[str, Any]:
        """The object ``memory.checkpoints``."""
        return {
            "checkpoint_bytes": self.checkpoint_bytes,
            "kept": self.kept,
            "kept_bytes": self.kept_bytes,
            "peak_bytes": self.peak_bytes,
            "components": {"parameters": self.parameters, "optimizer_states": self.optimizer_states},
        }


def rank_file_bytes(settings: DeepSpeedSettings, load: StageLoad) -> tuple[Size, Size]:
    """Bytes of the files of one rank: the parameters of a rank of the first replica, and the optimizer states of any."""
    shape = load.shape
    trained = rank_states(
        settings,
        num_parameters=shape.trainable_parameters,
        data_parallel_size=load.data_parallel_size,
        num_muon=shape.muon_parameters,
    ).optimizer_states
    if settings.sharding_stage >= 3:
        return 0 * shape.parameters, trained
    return shape.parameters * DTYPE_BYTES[settings.dtype], trained


def checkpoint_disk(
    settings: DeepSpeedSettings,
    files: Sequence[tuple[Size, Size]],
    *,
    tensor_parallel_size: int,
    data_parallel_size: int,
    checkpoint: CheckpointConfig,
    training: TrainingConfig,
) -> CheckpointDisk:
    """The checkpoint folder of a run; ``files`` are the ``rank_file_bytes`` of each pipeline coordinate."""
    writers = data_parallel_size if settings.sharding_stage >= 1 else 1
    parameters = optimizer_states = 0
    for of_model, of_optimizer in files:
        parameters += tensor_parallel_size * int(of_model)
        optimizer_states += tensor_parallel_size * writers * int(of_optimizer)
    saves = num_saves(checkpoint, training.max_steps) + num_best_saves(checkpoint, training)
    # the best beside the newest: it may be older than all of them
    kept = min(saves, checkpoint.keep + checkpoint.keep_best) if checkpoint.keep > 0 else saves
    return CheckpointDisk(parameters=parameters, optimizer_states=optimizer_states, kept=kept, at_once=min(saves, kept + 1))


def num_saves(checkpoint: CheckpointConfig, max_steps: int) -> int:
    """Checkpoints that a run of ``max_steps`` steps writes: every ``save_every`` steps, and one at the end."""
    regular = max_steps // checkpoint.save_every if checkpoint.save_every > 0 else 0
    ends_with_one = checkpoint.save_every > 0 and max_steps % checkpoint.save_every == 0
    return regular + (checkpoint.save_at_end and not ends_with_one)


def num_best_saves(checkpoint: CheckpointConfig, training: TrainingConfig) -> int:
    """Further checkpoints that evaluations cause if each is the best so far: after steps that would save none."""
    if not checkpoint.keep_best:
        return 0
    every, save_every = training.evaluate_every, checkpoint.save_every
    evaluated = (training.max_steps - 1) // every if every > 0 else 0
    both = (training.max_steps - 1) // math.lcm(every, save_every) if every > 0 and save_every > 0 else 0
    saves_last = checkpoint.save_at_end or (save_every > 0 and training.max_steps % save_every == 0)
    return evaluated - both + (not saves_last)
