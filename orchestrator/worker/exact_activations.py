"""What autograd keeps of a rank's forward pass at its real size, without memory and without computing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from orchestrator.config.enums import RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.models.layers import LayerKind, LayerShapes, Placement, layer_kinds
from orchestrator.models.recompute import Recompute, run_layers
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.tensor_parallel.mappings import enter_region
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.worker.engine import TORCH_DTYPES


def saved_activation_bytes(
    config: RunConfig, spec: ModelSpec, layers: range, group: TensorParallelGroup, *, micro_batch: int, sequence_length: int
) -> int:
    """Bytes that one micro-batch keeps for the backward pass in ``layers`` (global numbers), without logits and loss.

    Tensors are fake: they have shapes and storages, and operations make of them what they would make of real ones.
    """
    policy = config.activation_checkpointing.policy
    shapes = LayerShapes(spec=spec, group=group, recompute_attention=policy is RecomputePolicy.selective)
    dtype = TORCH_DTYPES[config.precision.dtype]
    recompute = Recompute.from_config(config.activation_checkpointing)
    # outside the mode, which would leave them on the meta device
    kinds = {number: layer_kinds(spec)[number] for number in layers}
    has_head = LayerKind.head in kinds.values()
    unplaced = [shapes.build(number) for number, kind in kinds.items() if kind is not LayerKind.head]
    with FakeTensorMode(allow_non_fake_inputs=True):
        placement = Placement(dtype=dtype, device=torch.device("cpu"), fill=lambda _hf, _values: None)
        built = [placement.place(layer, group).train() for layer in unplaced]
        parameters = {parameter.untyped_storage()._cdata for layer in built for parameter in layer.parameters()}
        length = sequence_length // group.size if group.sequence_parallel else sequence_length
        first: Tensor = torch.zeros(micro_batch, sequence_length, dtype=torch.int64)
        if layers.start > 0:
            first = torch.zeros(micro_batch, length, spec.hidden_size, dtype=dtype, requires_grad=True)
        saved: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in parameters:
                saved[storage._cdata] = storage
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            positions = torch.zeros(micro_batch, sequence_length, dtype=torch.int64) if config.data.reset_at_documents else None
            output = run_layers(built, first, recompute, group=group, positions=positions)
        # rotary tables and masks stay, whether a recomputed layer has saved them or not; the head saves its input
        stays = shapes.inputs.tensors if LayerKind.block in kinds.values() else []
        if positions is not None:
            stays.append(positions)
        if has_head:
            stays.append(enter_region(output, group))
        saved |= {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in stays}
        return sum(storage.nbytes() for storage in saved.values())
