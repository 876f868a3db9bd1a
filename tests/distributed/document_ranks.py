"""A training whose attention starts anew at each document, in any layout and by hand; runs in a rank, where DeepSpeed is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from orchestrator.worker.attempt import WorkerAttempt, read_attempt
from orchestrator.worker.data.batches import Batch, BatchReader
from orchestrator.worker.data.reader import batch_reader
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.engine import build_engine, start_distributed
from orchestrator.worker.evaluate import held_out_loss
from orchestrator.worker.step import training_step
from tests.reference_model import plain_model

STEPS = 3
HELD_OUT = 7
BORDER = 12
"""A token below this ends a document, which the synthetic data has none of."""


@dataclass
class Losses:
    """Of every step, and of the held-out part after the last."""

    training: list[float]
    held_out: float | None


class DocumentReader:
    """A reader whose sequences consist of documents."""

    def __init__(self, attempt: WorkerAttempt) -> None:
        data = find_data(attempt.config, model_vocab_size=attempt.model.vocab_size)
        self._reader: BatchReader = batch_reader(attempt.config, data, layout=attempt.layout, rank=attempt.rank)

    def training_step(self, consumed_samples: int) -> list[Batch]:
        """This rank's micro-batches of a step."""
        return [_with_documents(batch) for batch in self._reader.training_step(consumed_samples)]

    def held_out(self, max_sequences: int, name: str | None = None) -> Iterator[Batch]:
        """This rank's share of the held-out sequences."""
        return map(_with_documents, self._reader.held_out(max_sequences, name))


def losses_in_layout(attempt_dir: Path) -> Losses:
    """What an attempt's layout makes of the first steps."""
    attempt = read_attempt(attempt_dir)
    reader = DocumentReader(attempt)
    start_distributed(attempt)
    engine = build_engine(attempt, attempt.model)
    steps = (reader.training_step(step * attempt.layout.train_batch_size) for step in range(STEPS))
    training = [training_step(engine, batches, attempt.layout).loss for batches in steps]
    return Losses(training, held_out_loss(engine, reader, max_sequences=HELD_OUT, advanced=lambda: None))


def losses_by_hand(attempt_dir: Path) -> Losses:
    """Hugging Face's model on one document at a time, and plain SGD."""
    attempt = read_attempt(attempt_dir)
    reader = DocumentReader(attempt)
    model = plain_model(attempt.model, seed=attempt.config.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=attempt.config.optimizer.lr)
    training = []
    for step in range(STEPS):
        (batch,) = reader.training_step(step * attempt.layout.train_batch_size)
        loss = _loss(_logits(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.append(loss.item())
    with torch.no_grad():
        batches = list(reader.held_out(HELD_OUT))
        total = sum(_loss(_logits(model, batch), batch, reduction="sum").item() for batch in batches)
    return Losses(training, total / sum(int((batch.labels >= 0).sum()) for batch in batches))


def _with_documents(batch: Batch) -> Batch:
    positions = np.zeros_like(batch.input_ids)
    for column in range(1, positions.shape[1]):
        positions[:, column] = (positions[:, column - 1] + 1) * (batch.input_ids[:, column - 1] >= BORDER)
    return replace(batch, positions=positions)


def _logits(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Each document by itself."""
    assert batch.positions is not None
    rows = zip(batch.input_ids, batch.positions, strict=True)
    return torch.stack([torch.cat([_alone(model, ids) for ids in _documents(*row)]) for row in rows])


def _documents(input_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.split(input_ids, np.flatnonzero(positions == 0)[1:])


def _alone(model: torch.nn.Module, input_ids: NDArray[np.int64]) -> Tensor:
    logits: Tensor = model(input_ids=torch.from_numpy(input_ids)[None]).logits[0]
    return logits


def _loss(logits: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten(), reduction=reduction)
