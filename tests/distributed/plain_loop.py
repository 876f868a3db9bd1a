"""The reference: a training loop written by hand in plain torch, one process, the whole batch at once."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_config
from orchestrator.worker.attempt import read_attempt
from orchestrator.worker.data.reader import batch_reader
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.lr_schedule import learning_rate
from tests.distributed.plain_optimizers import plain_optimizer
from tests.reference_model import named_parameters, plain_model


def train_plainly(attempt_dir: Path) -> tuple[list[float], list[float]]:
    """Loss and gradient norm of every step of an attempt, without DeepSpeed and our own loss, step and optimizer code."""
    _, losses, norms = _train(attempt_dir)
    return losses, norms


def weights_trained_plainly(attempt_dir: Path) -> dict[str, Tensor]:
    """The weights at the end of the same training, under Hugging Face's names."""
    model, _, _ = _train(attempt_dir)
    return {name: parameter.detach() for name, parameter in named_parameters(model)}


def first_weights(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """The weights before the first step."""
    return {name: parameter.detach() for name, parameter in named_parameters(plain_model(spec, seed=seed))}


def _train(attempt_dir: Path) -> tuple[nn.Module, list[float], list[float]]:
    attempt = read_attempt(attempt_dir)
    config = attempt.config
    spec = model_spec_from_config(config.model)
    model = plain_model(spec, seed=config.seed)
    for name, parameter in named_parameters(model):
        parameter.requires_grad_(not any(re.search(pattern, name) for pattern in config.training.freeze))
    norms_and_biases = {
        id(p) for m in model.modules() for n, p in m.named_parameters(recurse=False) if is_norm(m) or n == "bias"
    }
    optimizer = plain_optimizer(
        config.optimizer,
        [
            {"params": [p for p in model.parameters() if id(p) not in norms_and_biases]},
            {"params": [p for p in model.parameters() if id(p) in norms_and_biases], "weight_decay": 0.0},
        ],
        ends={id(p) for p in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)},
    )
    batch_size = attempt.layout.train_batch_size
    whole_batch = ParallelLayout(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        train_batch_size=batch_size,
        train_micro_batch_size_per_gpu=batch_size,
        gradient_accumulation_steps=1,
    )
    data = find_data(config, model_vocab_size=spec.vocab_size)
    reader = batch_reader(config, data, layout=whole_batch, rank=0)
    losses, norms = [], []
    for step in range(config.training.max_steps):
        (batch,) = reader.training_step(step * batch_size)
        logits = model(input_ids=torch.from_numpy(batch.input_ids)).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
        for group in optimizer.param_groups:
            schedule, max_steps = config.lr_scheduler, config.training.max_steps
            rate = learning_rate(step, peak=config.optimizer.lr, schedule=schedule, max_steps=max_steps)
            group["lr"] = rate * group.get("lr_factor", 1.0)
        optimizer.zero_grad()
        loss.backward()
        clipping = config.training.gradient_clipping
        norm = nn.utils.clip_grad_norm_(model.parameters(), clipping or float("inf"))
        assert norm > clipping, "a run that clips nothing does not test clipping"
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return model, losses, norms


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or an RMSNorm of some family."""
    return type(module).__name__.endswith(("LayerNorm", "RMSNorm"))
