"""The gradient norm where DeepSpeed's own is not there, or would be waited for in vain.

An optimizer that DeepSpeed does not wrap (fp32 at ZeRO stage 0) keeps no norm, and in a pipeline its clipping takes a wrong
one: it leaves out what is not marked as tensor parallel on all stages but the first, and counts a tied weight on both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
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


def take_part_in_every_sum(engine: Any, group: ProcessGroup | None) -> None:
    """Let a rank on which DeepSpeed finds nothing to sum take part in the sums of the gradient norm over ``group``.

    ``group`` are the ranks that hold the model together, None for one.
    """
    optimizer = engine.optimizer
    if isinstance(optimizer, BF16_Optimizer):
        _list_at_least_a_zero(optimizer, engine.device)
    elif isinstance(optimizer, DeepSpeedZeroOptimizer) and group is not None:
        own = len(optimizer.bit16_groups)
        most = torch.tensor(own, device=engine.device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        _add_empty_groups(optimizer, int(most) - own)


def _list_at_least_a_zero(optimizer: BF16_Optimizer, device: torch.device) -> None:
    """It fails on an empty list: of a rank that trains nothing but what another one counts (norms, a tied head)."""
    listed = optimizer.get_grads_for_norm

    def listed_or_zero(for_clipping: bool = False) -> Any:
        gradients = listed(for_clipping)
        if for_clipping or gradients[0]:
            return gradients
        return [torch.zeros(1, device=device)], gradients[1]

    optimizer.get_grads_for_norm = listed_or_zero


def _add_empty_groups(optimizer: DeepSpeedZeroOptimizer, absent: int) -> None:
    """It sums once for each parameter group of its own, of which a stage that holds the embedding alone has one less.

    The other stages would wait for it until the timeout.
    """
    measure, own = optimizer.scaled_global_norm, len(optimizer.bit16_groups)

    def measured_with_empty_groups(*args: Any, **options: Any) -> Any:
        optimizer.bit16_groups.extend([] for _ in range(absent))
        optimizer.params_in_partition.extend([] for _ in range(absent))
        optimizer.averaged_gradients.update((own + number, []) for number in range(absent))
        try:
            return measure(*args, **options)
        finally:
            del optimizer.bit16_groups[own:], optimizer.params_in_partition[own:]
            for number in range(absent):
                del optimizer.averaged_gradients[own + number]

    if absent:
        optimizer.scaled_global_norm = measured_with_empty_groups


def is_unwrapped(engine: Any) -> bool:
    """Whether the engine runs the plain optimizer."""
    return engine.zero_optimization_stage() == 0 and not (engine.fp16_enabled() or engine.bfloat16_enabled())


def _counts(parameter: nn.Parameter, tensor_rank: int) -> bool:
    """Whether this rank is who counts the parameter: a shard everywhere, anything else on one rank, a tied copy nowhere."""
    marked = bool(getattr(parameter, "tensor_model_parallel", False))
    return not getattr(parameter, "ds_pipe_replicated", False) and (marked or tensor_rank == 0)
