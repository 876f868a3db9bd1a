"""Our model, whole, in this process."""

from __future__ import annotations

import torch

from orchestrator.config.enums import RecomputePolicy
from orchestrator.models.causal_lm import CausalLM
from orchestrator.models.initialization import seeded_weights
from orchestrator.models.layers import LayerShapes, Placement
from orchestrator.models.recompute import Recompute
from orchestrator.models.tensor_parallel.group import ALONE
from orchestrator.planning.model_spec import ModelSpec

WHOLE_BLOCKS = Recompute()


def model_alone(
    spec: ModelSpec,
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    recompute: Recompute = WHOLE_BLOCKS,
    policy: RecomputePolicy = RecomputePolicy.none,
) -> CausalLM:
    """The model with the weights of a new run."""
    shapes = LayerShapes(spec=spec, group=ALONE, recompute_attention=policy is RecomputePolicy.selective)
    placement = Placement(dtype=dtype, device=torch.device("cpu"), fill=seeded_weights(spec, ALONE, seed=seed))
    return CausalLM(shapes, placement, recompute, None)
