"""Held-out losses: of the part of the training data that is held out, and of further sets by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed
from deepspeed.runtime.pipe.dualpipev import DualPipeVEngine
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from orchestrator.worker.data.batches import Batch, BatchReader
from orchestrator.worker.data.sequences import IGNORED
from orchestrator.worker.step import model_inputs, pipeline_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutLosses:
    """Mean cross entropy over the counting tokens of each set, in nats; of a set without one there is none."""

    main: float | None = None
    """Of the held-out part of the training data."""
    named: Mapping[str, float] = field(default_factory=dict)


def held_out_losses(engine: Any, reader: BatchReader, *, max_sequences: int, advanced: Callable[[], None]) -> HeldOutLosses:
    """Measure at most ``max_sequences`` sequences of every held-out set; every rank calls it and gets the same.

    ``advanced`` is called for each batch that this rank reads.
    """
    main, *others = (
        held_out_loss(engine, reader, name=name, max_sequences=max_sequences, advanced=advanced)
        for name in (None, *reader.held_out_names)
    )
    named = zip(reader.held_out_names, others, strict=True)
    return HeldOutLosses(main=main, named={name: loss for name, loss in named if loss is not None})


def held_out_loss(
    engine: Any, reader: BatchReader, *, max_sequences: int, advanced: Callable[[], None], name: str | None = None
) -> float | None:
    """Mean cross entropy over the counting tokens of at most ``max_sequences`` sequences of one held-out set, in nats.

    Every rank runs the same number of forward passes, which ZeRO-3 and a pipeline need, and gets the same loss, whose last
    digit may decide what is the best checkpoint. None if there is no token to measure.
    """
    batches = list(reader.held_out(max_sequences, name))
    if not batches:
        return None
    engine.module.loss_fn.scale = 1.0
    measure = _pipeline_sum if isinstance(engine, PipelineEngine) else _sum
    count = torch.tensor(sum(int((batch.labels != IGNORED).sum()) for batch in batches), device=engine.device)
    torch.distributed.all_reduce(count, group=engine.data_parallel_group)
    total = measure(engine, batches, advanced)
    torch.distributed.broadcast(total, src=0)
    return float(total) / int(count) if count else None


def _sum(engine: Any, batches: Sequence[Batch], advanced: Callable[[], None]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    engine.eval()
    with torch.no_grad():
        for inputs, labels in _tensors(engine, batches, advanced):
            total += engine.module.loss_fn(engine(*inputs), labels)
    engine.train()
    torch.distributed.all_reduce(total, group=engine.data_parallel_group)
    return total


def _pipeline_sum(engine: Any, batches: Sequence[Batch], advanced: Callable[[], None]) -> Tensor:
    """A folded pipeline runs as many micro-batches as a training step has; labels that do not count fill the last ones up."""
    at_once = engine.micro_batches if isinstance(engine, DualPipeVEngine) else len(batches)
    empty = replace(batches[0], labels=np.full_like(batches[0].labels, IGNORED))
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    for first in range(0, len(batches), at_once):
        some = list(batches[first : first + at_once])
        some += [empty] * (at_once - len(some))
        tensors = ((pipeline_inputs(inputs), labels) for inputs, labels in _tensors(engine, some, advanced))
        mean = engine.eval_batch(tensors, num_micro_batches=at_once)
        total += mean.sum() * (at_once * engine.dp_world_size)
    engine.train()
    return total


def _tensors(
    engine: Any, batches: Sequence[Batch], advanced: Callable[[], None]
) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    for batch in batches:
        advanced()
        yield model_inputs(batch, engine.device), torch.from_numpy(batch.labels).to(engine.device)
