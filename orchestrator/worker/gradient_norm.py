"""The gradient norm of a run whose optimizer DeepSpeed does not wrap: fp32 at ZeRO stage 0.

DeepSpeed's clipping there keeps no norm, and in a pipeline it takes a wrong one: it leaves out what is not marked as
tensor parallel on all stages but the first, and counts a tied weight on both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup


class PlainGradientNorm:
    """Measures the norm before every optimizer step of ``engine``, and clips by it if the configuration clips.

    ``group`` are the ranks that hold the model together, None for one; ``tensor_rank`` is the place among those that share
    the layers. Each element of the model counts once.
    """

    def __init__(self, engine: Any, *, group: ProcessGroup | None, tensor_rank: int) -> None:
        self.value = torch.zeros(())
        self._parameters = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
        self._counted = [parameter for parameter in self._parameters if _counts(parameter, tensor_rank)]
        self._group = group
        take_step = engine._take_model_step

        def measured_step(*args: Any, **options: Any) -> Any:
            self.value = self._measure()
            return take_step(*args, **options)

        engine._take_model_step = measured_step
        engine.clip_fp32_gradients = lambda: self._clip(engine.gradient_clipping())

    def _measure(self) -> Tensor:
        gradients = [parameter.grad for parameter in self._counted if parameter.grad is not None]
        device = self._parameters[0].device
        square = (
            torch.nn.utils.get_total_norm(gradients).to(device).float() ** 2 if gradients else torch.zeros((), device=device)
        )
        if self._group is not None:
            dist.all_reduce(square, group=self._group)
        return square.sqrt()

    def _clip(self, max_norm: float) -> None:
        nn.utils.clip_grads_with_norm_(self._parameters, max_norm, self.value)


def is_unwrapped(engine: Any) -> bool:
    """Whether the engine runs the plain optimizer."""
    return engine.zero_optimization_stage() == 0 and not (engine.fp16_enabled() or engine.bfloat16_enabled())


def _counts(parameter: nn.Parameter, tensor_rank: int) -> bool:
    """Whether this rank is who counts the parameter: a shard everywhere, anything else on one rank, a tied copy nowhere."""
    marked = bool(getattr(parameter, "tensor_model_parallel", False))
    return not getattr(parameter, "ds_pipe_replicated", False) and (marked or tensor_rank == 0)
