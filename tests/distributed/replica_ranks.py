"""The parameters that ranks which share the layers hold whole; runs in a rank, where DeepSpeed is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.models.shards import hf_parameter
from orchestrator.worker.attempt import read_attempt
from orchestrator.worker.data.reader import batch_reader
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.engine import build_engine, start_distributed
from orchestrator.worker.step import training_step


def whole_parameters_after_training(attempt_dir: Path) -> dict[str, str]:
    """A checksum of each after the steps of an attempt, under Hugging Face's names."""
    attempt = read_attempt(attempt_dir)
    data = find_data(attempt.config, model_vocab_size=attempt.model.vocab_size)
    start_distributed(attempt)
    reader = batch_reader(attempt.config, data, layout=attempt.layout, rank=attempt.rank)
    engine = build_engine(attempt, attempt.model)
    for step in range(attempt.config.training.max_steps):
        training_step(engine, reader.training_step(step * attempt.layout.train_batch_size), attempt.layout)
    return {
        hf_parameter(parameter).name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for parameter in engine.module.parameters()
        if hf_parameter(parameter).split is None
    }
