"""The model that is trained, of any family, alone on one device."""

from __future__ import annotations

import torch

from orchestrator.config.enums import RecomputePolicy
from orchestrator.models.causal_lm import CausalLM
from orchestrator.models.layers import LayerShapes, Placement
from orchestrator.models.recompute import Recompute
from orchestrator.models.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from orchestrator.models.tensor_parallel.group import ALONE
from orchestrator.planning.model_spec import ModelSpec
from tests.unit.planning.live_memory import LiveMemory

DTYPES = {2: torch.bfloat16, 4: torch.float32}


def own_model(spec: ModelSpec, dtype_bytes: int, policy: RecomputePolicy, interval: int = 1) -> CausalLM:
    """In training mode, with a zero gradient at every parameter."""
    blocks = {RecomputePolicy.full: 1, RecomputePolicy.every_k_layers: interval}.get(policy, 0)
    shapes = LayerShapes(spec=spec, group=ALONE, recompute_attention=policy is RecomputePolicy.selective)
    placement = Placement(dtype=DTYPES[dtype_bytes], device=torch.device("cpu"), fill=lambda _, values: values.normal_(0, 0.02))
    model = CausalLM(shapes, placement, Recompute(interval=blocks), None)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model.train()


def documents(shape: tuple[int, int]) -> torch.Tensor:
    """Positions of rows that hold documents of ten tokens."""
    return (torch.arange(shape[1]) % 10).repeat(shape[0], 1)


def bytes_after_forward(
    spec: ModelSpec,
    dtype_bytes: int,
    shape: tuple[int, int],
    policy: RecomputePolicy = RecomputePolicy.none,
    positions: torch.Tensor | None = None,
) -> int:
    """What is alive after the forward pass, the logits left out."""
    model = own_model(spec, dtype_bytes, policy)
    tokens = torch.randint(0, spec.vocab_size, shape)
    with LiveMemory(model.parameters()) as memory:
        logits = model(tokens, positions)
        return memory.live_bytes + _input_bytes(tokens, positions) - logits.nbytes


def peak_bytes(
    spec: ModelSpec,
    dtype_bytes: int,
    shape: tuple[int, int],
    policy: RecomputePolicy,
    interval: int = 1,
    positions: torch.Tensor | None = None,
) -> int:
    """The most that is alive in a forward and a backward pass, beside the parameters and their gradients."""
    model = own_model(spec, dtype_bytes, policy, interval)
    tokens = torch.randint(0, spec.vocab_size, shape)
    known = [*model.parameters(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    softcap = spec.hf_config.get("final_logit_softcapping")
    with LiveMemory(known) as memory:
        loss = vocab_parallel_cross_entropy(
            model(tokens, positions).flatten(0, 1), tokens.flatten(), group=ALONE, vocab_size=spec.vocab_size, softcap=softcap
        )
        loss.backward()
    return memory.peak_bytes + _input_bytes(tokens, positions)


def _input_bytes(tokens: torch.Tensor, positions: torch.Tensor | None) -> int:
    return tokens.nbytes + (0 if positions is None else positions.nbytes)
