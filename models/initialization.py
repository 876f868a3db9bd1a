"""Initial weights that depend on the seed and on the parameters' names, and on nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from orchestrator.planning.model_spec import ModelSpec


def initialize_parameters(model: nn.Module, spec: ModelSpec, *, seed: int) -> None:
    """Fill every parameter of a Hugging Face model of ``spec``.

    Each parameter is drawn in fp32 on the CPU from a generator of its own, seeded by ``seed`` and its name, and then rounded
    to its dtype: the weights are the same whatever the device, the number of ranks and the ZeRO stage. Matrices and
    embeddings are normal with deviation ``initializer_range``, the ends of the residual branches of GPT-2 and GPT-NeoX
    divided by sqrt(2 x layers) (Radford et al., 2019); norm weights are one, biases zero. A tied weight is drawn once, under
    the embedding's name. Parameters that ``deepspeed.zero.Init`` partitioned are gathered one at a time, on all ranks together.
    """
    for name, parameter in model.named_parameters():
        with torch.no_grad(), _whole(parameter) as writes:
            if writes:
                _fill(parameter, name, spec, seed)


def _fill(parameter: nn.Parameter, name: str, spec: ModelSpec, seed: int) -> None:
    if name.endswith(".bias"):
        parameter.zero_()
    elif parameter.dim() == 1:
        parameter.fill_(1.0)
    else:
        generator = torch.Generator(device="cpu").manual_seed(_parameter_seed(seed, name))
        values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        parameter.copy_(values.normal_(0.0, _deviation(name, spec), generator=generator))


def _deviation(name: str, spec: ModelSpec) -> float:
    deviation = float(spec.hf_config.get("initializer_range", 0.02))
    if spec.facts.scaled_residual_init and name.endswith(spec.facts.scaled_residual_init):
        return deviation / math.sqrt(2 * spec.num_hidden_layers)
    return deviation


def _parameter_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def _whole(parameter: nn.Parameter) -> Iterator[bool]:
    """The parameter at full size inside the context, and whether this rank is the one to write it."""
    if not hasattr(parameter, "ds_id"):
        yield True
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        yield torch.distributed.get_rank() == 0
