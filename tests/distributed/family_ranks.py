"""What a rank of any layout computes on a family's tiny model, in Hugging Face's terms, so that layouts can be compared.

Gradients are taken where autograd leaves them, before DeepSpeed reduces them over the replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from orchestrator.models.shards import HfParameter
from orchestrator.worker.attempt import read_attempt
from orchestrator.worker.checkpoint import Position, save_checkpoint
from orchestrator.worker.data.reader import batch_reader
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.engine import build_engine, start_distributed
from orchestrator.worker.step import training_step
from tests.reference_model import named_hf_parameters, named_parameters, plain_model, whole_logits

STEPS = 5


@dataclass
class Measured:
    """``logits`` of fixed tokens before and after the training, None where the rank has none of its own to show."""

    logits: Tensor | None = None
    trained_logits: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


@dataclass
class Shard:
    """This rank's part of a gradient, and what of Hugging Face's parameter it is."""

    hf: HfParameter
    tensor_rank: int
    values: Tensor


def fixed_tokens(vocab_size: int) -> Tensor:
    """Two sequences of 16 tokens, the same for every family and layout."""
    return torch.randint(0, vocab_size, (2, 16), generator=torch.Generator().manual_seed(7))


def measure(attempt_dir: Path, save: bool) -> tuple[Measured, list[Shard]]:
    """Logits, first gradients and losses of the attempt's layout, and a checkpoint at its end if asked."""
    attempt = read_attempt(attempt_dir)
    config, spec = attempt.config, attempt.model
    data = find_data(config, model_vocab_size=spec.vocab_size)
    start_distributed(attempt)
    engine = build_engine(attempt, spec)
    reader = batch_reader(config, data, layout=attempt.layout, rank=attempt.rank)
    measured, shards = Measured(), []
    tokens = fixed_tokens(spec.vocab_size)
    measured.logits = _logits(engine, tokens)
    hooks = [
        parameter.register_hook(lambda gradient, key=index: gradients[key].append(gradient.detach().clone()))
        for index, (_, parameter) in enumerate(named_hf_parameters(engine.module))
    ]
    gradients: list[list[Tensor]] = [[] for _ in hooks]
    for step in range(STEPS):
        batches = reader.training_step(step * attempt.layout.train_batch_size)
        measured.losses.append(training_step(engine, batches, attempt.layout).loss)
        for hook in hooks:
            hook.remove()
    tensor_rank = attempt.layout.coordinate(attempt.rank).model
    for (hf, _), seen in zip(named_hf_parameters(engine.module), gradients, strict=True):
        shards.append(Shard(hf, tensor_rank, torch.stack(seen).sum(0) / attempt.layout.data_parallel_size))
    measured.trained_logits = _logits(engine, tokens)
    if save:
        position = Position(step=STEPS, consumed_samples=STEPS * attempt.layout.train_batch_size)
        save_checkpoint(engine, attempt, spec, position, {})
    dist.barrier()
    return measured, shards


def measure_plainly(attempt_dir: Path) -> Measured:
    """The same with Hugging Face's model in one process and a loop in plain torch."""
    attempt = read_attempt(attempt_dir)
    config, spec = attempt.config, attempt.model
    reader = batch_reader(config, find_data(config, model_vocab_size=spec.vocab_size), layout=attempt.layout, rank=0)
    model = plain_model(spec, seed=config.seed)
    tokens = fixed_tokens(spec.vocab_size)
    measured = Measured(logits=model(input_ids=tokens).logits.detach())
    optimizer = _plain_optimizer(model, config.optimizer)
    for step in range(STEPS):
        (batch,) = reader.training_step(step * attempt.layout.train_batch_size)
        logits = model(input_ids=torch.from_numpy(batch.input_ids)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            measured.gradients = {name: parameter.grad.clone() for name, parameter in named_parameters(model)}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.gradient_clipping)
        assert norm > config.training.gradient_clipping
        optimizer.step()
        measured.losses.append(loss.item())
    measured.trained_logits = model(input_ids=tokens).logits.detach()
    return measured


def save_plain_model(attempt_dir: Path, folder: Path) -> None:
    """A Hugging Face folder with the initial weights of the attempt's seed, in several files."""
    attempt = read_attempt(attempt_dir)
    plain_model(attempt.model, seed=attempt.config.seed).save_pretrained(folder, max_shard_size="20KB")


def logits_of_folder(folder: Path) -> Tensor:
    """The logits of an exported folder, as Hugging Face loads it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: Tensor = model(input_ids=fixed_tokens(model.config.vocab_size)).logits
    return logits


def combine(shards: list[Shard], *, tensor_parallel_size: int) -> dict[str, Tensor]:
    """The gradients over all ranks by Hugging Face's names: pieces put together, replicas and tied copies added up.

    Ranks that hold the same part of a replica have the same values; only the first of them counts.
    """
    found: dict[str, Tensor] = {}
    for shard in shards:
        whole = torch.zeros(shard.hf.shape)
        shard.hf.put(shard.values, whole, rank=shard.tensor_rank, size=tensor_parallel_size)
        split = shard.hf.split
        repeated = shard.tensor_rank > 0 if split is None else shard.tensor_rank % split.sharers(tensor_parallel_size) > 0
        if not repeated:
            found[shard.hf.name] = found.get(shard.hf.name, torch.zeros(shard.hf.shape)) + whole
    return found


def _logits(engine: Any, tokens: Tensor) -> Tensor | None:
    """Every rank calls it; None on ranks of a pipeline that never see logits."""
    module = engine.module
    if not isinstance(engine, PipelineEngine):
        engine.eval()
        with torch.no_grad():
            logits = engine(tokens)
        engine.train()
        return _shown(logits, module)
    # A pipeline knows one shape of micro-batch.
    rows = tokens.repeat(engine.micro_batch_size // len(tokens), 1)
    module.loss_fn.scale = 1.0
    _, logits = engine.eval_batch(iter([(rows, rows)]), return_logits=True, num_micro_batches=1)
    engine.train()
    if logits is None:
        return None
    return _shown(logits, module)[: len(tokens)]


def _shown(logits: Tensor, module: Any) -> Tensor:
    """The logits as Hugging Face gives them: whole, and capped where ours are capped in the loss."""
    whole, cap = whole_logits(logits, module.group, vocab_size=module.loss_fn.vocab_size), module.loss_fn.softcap
    return whole if cap is None else cap * torch.tanh(whole / cap)


def _plain_optimizer(model: torch.nn.Module, options: Any) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups, lr=options.lr, betas=tuple(options.betas), eps=options.eps, weight_decay=options.weight_decay
    )
