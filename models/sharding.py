"""Tensor parallelism of a Hugging Face block: its matrices become this rank's, its regions are entered and left.

Works on a block that was built on the meta device: nothing is copied, the parameters get the shapes of one rank and a note
of what they are in Hugging Face's model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.models.families.family import FamilyModules, LocalHeads, Part, Region
from orchestrator.models.shards import HfParameter, Split, describe, hf_parameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from orchestrator.models.tensor_parallel.mappings import enter_region
from orchestrator.models.tensor_parallel.random_streams import RegionRandomness
from orchestrator.planning.model_spec import ModelSpec


def shard_block(
    block: nn.Module, *, name: str, spec: ModelSpec, family: FamilyModules, group: TensorParallelGroup, dropout: bool
) -> None:
    """Turn ``block``, named ``name`` in Hugging Face's model, into what rank ``group.rank`` holds of it.

    ``dropout``: whether something is dropped inside its attention region.
    """
    for region, drops in ((family.attention, dropout), (family.mlp, False)):
        _shard_region(block.get_submodule(region.module), region, f"{name}.{region.module}", spec, group, drops=drops)
    _, query = Part.query.block(spec).share(group.rank, group.size)
    _, key_value = Part.key_value.block(spec).share(group.rank, group.size)
    family.localize(block.get_submodule(family.attention.module), LocalHeads(query=query, key_value=key_value))
    describe_whole(block, name)


def describe_whole(module: nn.Module, name: str) -> None:
    """Note the Hugging Face name of every parameter of ``module`` that has no note yet; each rank holds it whole."""
    for own, parameter in module.named_parameters():
        if not hasattr(parameter, "hf_parameter"):
            describe(parameter, HfParameter(name=f"{name}.{own}", shape=tuple(parameter.shape)))


def has_partial_gradient(parameter: nn.Parameter, group: TensorParallelGroup) -> bool:
    """Whether each rank's gradient of a parameter that it holds whole is only its part of the sum."""
    whole = hf_parameter(parameter).split is None
    return whole and (group.sequence_parallel or getattr(parameter, "sees_own_heads", False))


def _shard_region(
    module: nn.Module, region: Region, name: str, spec: ModelSpec, group: TensorParallelGroup, *, drops: bool
) -> None:
    for own, parts in region.columns.items():
        _set(module, own, _column(module.get_submodule(own), parts, f"{name}.{own}", spec, group))
    row = _row(module.get_submodule(region.row), region.row_part, f"{name}.{region.row}", spec, group)
    _set(module, region.row, row)
    for own in region.partial:
        for parameter in module.get_submodule(own).parameters():
            parameter.sees_own_heads = True
    if group.size > 1:
        _mark_entry(module, row, group, drops=drops)


def _mark_entry(module: nn.Module, row: nn.Module, group: TensorParallelGroup, *, drops: bool) -> None:
    """Enter the region where ``module`` is called, and give it its own random numbers up to its row-parallel matrix."""
    randomness = RegionRandomness(group)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            hidden = enter_region(args[0], group)
            args = (hidden, *args[1:])
        else:
            hidden = enter_region(kwargs["hidden_states"], group)
            kwargs = {**kwargs, "hidden_states": hidden}
        randomness.enter(hidden.device, active=drops and module.training)
        return args, kwargs

    def leave(module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 - a hook's signature
        randomness.leave()

    module.register_forward_pre_hook(enter, with_kwargs=True)
    if drops:
        row.register_forward_pre_hook(leave)


class PackedColumnParallelLinear(nn.Module):
    """A packed matrix in parts, for ranks that share one of them: key and value heads fewer than ranks.

    A parameter that two ranks hold alike in part only could be neither summed nor counted once.
    """

    def __init__(self, parts: list[ColumnParallelLinear]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's columns, one part after the other."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


def _column(
    linear: nn.Module, parts: tuple[Part, ...], name: str, spec: ModelSpec, group: TensorParallelGroup
) -> ColumnParallelLinear | PackedColumnParallelLinear:
    blocks = [part.block(spec) for part in parts]
    start = 0
    if not any(block.units < group.size for block in blocks):
        return _column_part(linear, Split(dim=0, blocks=tuple(blocks)), name, group)
    made = []
    for block in blocks:
        made.append(_column_part(linear, Split(dim=0, blocks=(block,), start=start), name, group))
        start += block.units * block.unit_size
    return made[0] if len(made) == 1 else PackedColumnParallelLinear(made)


def _column_part(linear: nn.Module, split: Split, name: str, group: TensorParallelGroup) -> ColumnParallelLinear:
    """``split`` is over the outputs, dimension 0 of an (out, in) matrix."""
    outputs, inputs, transposed = _shape(linear)
    local = split.local_length(group.size)
    made = ColumnParallelLinear(inputs, local, bias=linear.bias is not None, group=group)
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    matrix_split = Split(dim=1, blocks=split.blocks, start=split.start) if transposed else split
    describe(made.weight, HfParameter(name=f"{name}.weight", shape=shape, split=matrix_split, transposed=transposed))
    if made.bias is not None:
        describe(made.bias, HfParameter(name=f"{name}.bias", shape=(outputs,), split=split))
    return made


def _row(linear: nn.Module, part: Part, name: str, spec: ModelSpec, group: TensorParallelGroup) -> RowParallelLinear:
    outputs, inputs, transposed = _shape(linear)
    split = Split(dim=0 if transposed else 1, blocks=(part.block(spec),))
    made = RowParallelLinear(split.local_length(group.size), outputs, bias=linear.bias is not None, group=group)
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    describe(made.weight, HfParameter(name=f"{name}.weight", shape=shape, split=split, transposed=transposed))
    if made.bias is not None:
        describe(made.bias, HfParameter(name=f"{name}.bias", shape=(outputs,)))
    return made


def _shape(linear: nn.Module) -> tuple[int, int, bool]:
    """Outputs, inputs, and whether Hugging Face keeps the matrix as (in, out)."""
    if isinstance(linear, nn.Linear):
        return linear.out_features, linear.in_features, False
    inputs, outputs = linear.weight.shape
    return outputs, inputs, True


def _set(module: nn.Module, path: str, made: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, made)
