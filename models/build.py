"""Builds the Hugging Face causal language model of a ``ModelSpec``, without Hugging Face's random initialization."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
import torch._dynamo  # before zero.Init is entered: it replaces torch's constructors, whose signatures dynamo reads on import
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from orchestrator.config.schema import RecomputePolicy
from orchestrator.planning.model_spec import ModelSpec


def build_model(
    spec: ModelSpec, *, dtype: torch.dtype, construction: AbstractContextManager[Any] | None = None
) -> PreTrainedModel:
    """The model of ``spec`` on the current default device, in training mode and with tied weights tied.

    ``construction`` is entered around the constructor: ``deepspeed.zero.Init`` partitions each parameter as it is made there.
    Parameters are in ``dtype`` and hold whatever the memory held; ``initialize_parameters`` or a checkpoint fills them.
    Buffers are complete and right, in fp32.
    """
    config = AutoConfig.for_model(**deepcopy(dict(spec.hf_config)))
    config.use_cache = False
    with no_init_weights(), construction or nullcontext():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=spec.attention_implementation.value)
    model.tie_weights()
    _remake_rotary_embeddings(model)
    return model.train()


def enable_recompute(model: PreTrainedModel, policy: RecomputePolicy) -> None:
    """Make the model drop and recompute its activations as ``policy`` says; ``full`` keeps the input of each layer."""
    if policy is RecomputePolicy.none:
        return
    # Newer transformers rename the method and warn about the old name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _remake_rotary_embeddings(model: PreTrainedModel) -> None:
    """Compute the rotary frequencies again outside ``construction``: zero.Init rounds every new tensor to the model's dtype."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(getattr(child, "inv_freq", None), torch.Tensor):
                remade: nn.Module = type(child)(config=model.config)
                setattr(parent, name, remade.to(child.inv_freq.device))
