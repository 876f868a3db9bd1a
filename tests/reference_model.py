"""Hugging Face's own model with the initial weights of ours, and ours in Hugging Face's terms: how layouts are compared."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from orchestrator.models.initialization import initial_value
from orchestrator.models.shards import HfParameter, hf_parameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.planning.model_spec import ModelSpec

DISK_NAMES = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
"""Parameters that newer transformers call otherwise in memory than in a checkpoint."""


def plain_model(spec: ModelSpec, *, seed: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The whole model on the CPU, in training mode, filled like a new run with ``seed``."""
    config = AutoConfig.for_model(**deepcopy(dict(spec.hf_config)))
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=spec.attention_implementation.value)
    with torch.no_grad():
        for name, parameter in named_parameters(model):
            parameter.copy_(initial_value(name, tuple(parameter.shape), spec, seed=seed))
    return model.train()


def named_parameters(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """The parameters under the names that a checkpoint has for them; a tied one once."""
    renamed = DISK_NAMES.get(model.config.model_type, {})
    return [(renamed.get(name, name), parameter) for name, parameter in model.named_parameters()]


def named_hf_parameters(module: nn.Module) -> Iterator[tuple[HfParameter, nn.Parameter]]:
    """Every parameter of a model, or of a part of one, with what it is in Hugging Face's model; a tied one once."""
    for parameter in module.parameters():
        yield hf_parameter(parameter), parameter


def whole_logits(logits: Tensor, group: TensorParallelGroup, *, vocab_size: int) -> Tensor:
    """Logits over the whole vocabulary, from every rank's columns; without a gradient and without padding."""
    if group.size == 1:
        return logits
    columns = [logits.new_empty(logits.shape) for _ in range(group.size)]
    dist.all_gather(columns, logits.detach().contiguous(), group=group.process_group)
    return torch.cat(columns, dim=-1)[..., :vocab_size]
