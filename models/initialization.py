"""Initial weights that depend on the seed and on the parameters' names, and on nothing else."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from orchestrator.models.layers import Fill
from orchestrator.models.shards import HfParameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.planning.model_spec import ModelSpec


def seeded_weights(spec: ModelSpec, group: TensorParallelGroup, *, seed: int) -> Fill:
    """What fills the parameters of a new model: the same weights whatever the layout, the device and the ZeRO stage."""

    def fill(hf: HfParameter, values: Tensor) -> None:
        values.copy_(hf.cut(initial_value(hf.name, hf.shape, spec, seed=seed), rank=group.rank, size=group.size))

    return fill


def initial_value(name: str, shape: tuple[int, ...], spec: ModelSpec, *, seed: int) -> Tensor:
    """The whole Hugging Face parameter ``name``, fp32 on the CPU.

    It is drawn from a generator of its own, seeded by ``seed`` and the name. Matrices and embeddings are normal with
    deviation ``initializer_range``, the ends of the residual branches of GPT-2 and GPT-NeoX divided by sqrt(2 x layers)
    (Radford et al., 2019); biases are zero; norm weights are one, or zero where the norm adds one to them. A tied weight is
    drawn under the embedding's name.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape, device="cpu")
    if len(shape) == 1:
        return torch.full(shape, 0.0 if spec.facts.norm_weight_is_offset else 1.0, device="cpu")
    generator = torch.Generator(device="cpu").manual_seed(_parameter_seed(seed, name))
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    return values.normal_(0.0, _deviation(name, spec), generator=generator)


def _deviation(name: str, spec: ModelSpec) -> float:
    deviation = float(spec.hf_config.get("initializer_range", 0.02))
    if spec.facts.scaled_residual_init and name.endswith(spec.facts.scaled_residual_init):
        return deviation / math.sqrt(2 * spec.num_hidden_layers)
    return deviation


def _parameter_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
