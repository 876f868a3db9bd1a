"""Running a list of layers while keeping fewer activations: those of some blocks are dropped and computed again.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; the attention alone: Korthikanti et al., 2022.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from orchestrator.config.enums import RecomputePolicy
from orchestrator.config.schema import ActivationCheckpointingConfig
from orchestrator.models.communication.collectives import all_gather
from orchestrator.models.parts import DecoderBlock, PositionEmbedding
from orchestrator.models.tensor_parallel.group import TensorParallelGroup

Layer = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What is dropped and computed again, and where the inputs that this starts from are kept.

    ``interval`` consecutive blocks are recomputed together; 0 recomputes none.
    """

    interval: int = 0
    partition: bool = False
    to_host: bool = False

    @staticmethod
    def from_config(config: ActivationCheckpointingConfig) -> Recompute:
        """What the options ask of whole blocks."""
        interval = {RecomputePolicy.full: 1, RecomputePolicy.every_k_layers: config.interval}.get(config.policy, 0)
        return Recompute(interval=interval, partition=config.partition_activations, to_host=config.cpu_checkpointing)


def run_layers(
    layers: Sequence[Layer], x: Tensor, recompute: Recompute, *, group: TensorParallelGroup, positions: Tensor | None = None
) -> Tensor:
    """The output of ``layers`` one after the other. Only blocks are recomputed, never the ends of the model.

    ``positions``: where each token stands in its document, for the layers that ask; None if a row is one document.
    """
    # Not an argument of a checkpoint, which would cut it or move it as it does the hidden states.
    run = partial(_run, positions=positions)
    if recompute.interval == 0 or not torch.is_grad_enabled():
        return run(layers, x)
    start = 0
    while start < len(layers):
        stop = start
        while stop < min(start + recompute.interval, len(layers)) and isinstance(layers[stop], DecoderBlock):
            stop += 1
        if stop == start:
            x, start = run(layers[start : start + 1], x), start + 1
            continue
        with _kept(recompute, group):
            x = checkpoint(run, layers[start:stop], x, use_reentrant=False)
        start = stop
    return x


def recomputed_attention(implementation: str, block: type[nn.Module]) -> str:
    """The name under which Hugging Face finds ``implementation`` with its scores and weights recomputed.

    Query, key and value stay, the projections around are not computed again.
    """
    module = inspect.getmodule(block)
    assert module is not None
    attend = ALL_ATTENTION_FUNCTIONS.get(implementation, getattr(module, "eager_attention_forward", None))
    assert attend is not None

    def attend_by_name(module: Any, *tensors: Tensor | None, **options: Any) -> Any:
        # Flash attention looks its kernel up under the name in the config.
        own, module.config._attn_implementation = module.config._attn_implementation, implementation
        try:
            return attend(module, *tensors, **options)
        finally:
            module.config._attn_implementation = own

    def recomputed(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return attend_by_name(module, query, key, value, mask, **options)
        return checkpoint(attend_by_name, module, query, key, value, mask, use_reentrant=False, **options)

    name = f"recomputed_{implementation}_{module.__name__.rpartition('_')[2]}"
    ALL_ATTENTION_FUNCTIONS.register(name, recomputed)
    return name


def _run(layers: Sequence[Layer], x: Tensor, *, positions: Tensor | None) -> Tensor:
    for layer in layers:
        asks = positions is not None and isinstance(layer, DecoderBlock | PositionEmbedding)
        x = layer(x, positions) if asks else layer(x)
    return x


def _kept(recompute: Recompute, group: TensorParallelGroup) -> AbstractContextManager[Any]:
    """Around a checkpoint: its inputs are what torch saves there."""
    partition = recompute.partition and group.size > 1 and not group.sequence_parallel
    if not (partition or recompute.to_host):
        return nullcontext()

    def pack(x: Tensor) -> tuple[Tensor, torch.device, torch.Size, bool]:
        # Some versions of torch save an empty tensor beside the inputs.
        cut = partition and x.numel() > 0
        kept = _own_share(x, group) if cut else x
        if recompute.to_host:
            host = torch.empty(kept.shape, dtype=kept.dtype, device="cpu", pin_memory=kept.device.type == "cuda")
            kept = host.copy_(kept, non_blocking=True)
        return kept, x.device, x.shape, cut

    def unpack(packed: tuple[Tensor, torch.device, torch.Size, bool]) -> Tensor:
        kept, device, shape, cut = packed
        kept = kept.to(device, non_blocking=True)
        return _gathered(kept, shape, group) if cut else kept

    hooks: AbstractContextManager[Any] = saved_tensors_hooks(pack, unpack)
    return hooks


def _own_share(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """This rank's part of the elements, padded to equal lengths."""
    flat = x.detach().reshape(-1)
    length = -(-flat.numel() // group.size)
    own = flat[group.rank * length : (group.rank + 1) * length]
    return torch.cat([own, own.new_zeros(length - own.numel())])


def _gathered(own: Tensor, shape: torch.Size, group: TensorParallelGroup) -> Tensor:
    whole = own.new_empty(group.size * own.numel())
    all_gather(whole, own, group.process_group)
    return whole[: shape.numel()].view(shape)
