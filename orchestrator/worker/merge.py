"""The weights in DeepSpeed's checkpoint files, whatever layout wrote them, as whole Hugging Face tensors.

A checkpoint holds each parameter in one of two ways: in the compute dtype, whole for each tensor-parallel rank (ZeRO 0 to 2:
``mp_rank_TT_model_states.pt``, with a pipeline ``layer_LL-model_TT-model_states.pt``), or in fp32, flat and cut over the
data-parallel ranks (``*zero_pp_rank_D_mp_rank_MM_optim_states.pt``). Files are mapped, not read: a tensor comes into memory
when it is asked for.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401 - its classes are in the files
import torch
from torch import Tensor

from orchestrator.models.shards import HfParameter

TIED = "tied_modules."


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedParameter:
    """A parameter by its name in our model (``3.self_attn.q_proj.weight``), and what it is in Hugging Face's.

    ``layer`` is the global number of the layer; for a tied parameter that of its first appearance.
    """

    name: str
    layer: int
    hf: HfParameter


class LocalWeights(ABC):
    """Parameters as the tensor-parallel ranks hold them."""

    @abstractmethod
    def local(self, parameter: NamedParameter, rank: int) -> Tensor:
        """What tensor-parallel rank ``rank`` holds of a parameter. Raises KeyError if the checkpoint does not have it."""


def merged(
    parameters: Sequence[NamedParameter], weights: LocalWeights, *, tensor_parallel_size: int, dtype: torch.dtype
) -> Tensor:
    """One whole Hugging Face tensor in ``dtype``, without padding, from the parameters that are parts of it."""
    full = torch.empty(parameters[0].hf.shape, dtype=dtype)
    for parameter in parameters:
        expected = parameter.hf.local_shape(tensor_parallel_size)
        for rank in range(tensor_parallel_size):
            local = weights.local(parameter, rank)
            assert tuple(local.shape) == expected, f"{parameter.name}: {tuple(local.shape)} in the checkpoint, not {expected}"
            parameter.hf.put(local, full, rank=rank, size=tensor_parallel_size)
    return full


class ModuleFiles(LocalWeights):
    """Checkpoints without a pipeline and below ZeRO-3."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def local(self, parameter: NamedParameter, rank: int) -> Tensor:
        module: Mapping[str, Tensor] = _load(self._folder / f"mp_rank_{rank:02d}_model_states.pt")["module"]
        return module[parameter.name]


class LayerFiles(LocalWeights):
    """Checkpoints with a pipeline: a file a layer, with names inside the layer. A tied module is in its first layer's file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def local(self, parameter: NamedParameter, rank: int) -> Tensor:
        number = f"layer_{parameter.layer:02d}"
        named = self._folder / f"{number}-model_{rank:02d}-model_states.pt"
        path = named if named.exists() else self._folder / f"{number}-model_states.pt"
        layer: Mapping[str, Tensor] = _load(path)
        return layer[name_in_layer(parameter.name)]


def name_in_layer(name: str) -> str:
    """``3.norm.weight`` -> ``norm.weight``; ``tied_modules.embedding.weight`` -> ``weight``."""
    inside = name.removeprefix(TIED)
    return inside.partition(".")[2]


class FlatPartitions(LocalWeights):
    """The fp32 weights that ZeRO's optimizers own, and with stage 3 the frozen ones; ``stages`` is the pipeline's size."""

    def __init__(self, folder: Path, *, zero_stage: int, tensor_parallel_size: int, stages: int) -> None:
        self._folder = folder
        self._zero_stage = zero_stage
        self._tensor_parallel_size = tensor_parallel_size
        self._stages = stages

    def local(self, parameter: NamedParameter, rank: int) -> Tensor:
        for stage in range(self._stages):
            group = self._group(stage * self._tensor_parallel_size + rank)
            if parameter.name in group.places:
                return group.tensor(parameter.name)
            if parameter.name in group.frozen_shapes:
                return group.frozen(parameter.name)
        raise KeyError(parameter.name)

    @cache  # noqa: B019 - lives as long as an export
    def _group(self, model_rank: int) -> _DataParallelGroup:
        """The files of the data-parallel ranks that share the parameters of ``model_rank``."""
        optimizer_files = _by_data_rank(self._folder, f"*zero_pp_rank_*_mp_rank_{model_rank:02d}_optim_states.pt")
        if self._zero_stage == 3:
            model_files = _by_data_rank(self._folder, f"zero_pp_rank_*_mp_rank_{model_rank:02d}_model_states.pt")
        else:
            model_files = [self._folder / f"mp_rank_{model_rank:02d}_model_states.pt"]
        states = [_load(path)["optimizer_state_dict"] for path in optimizer_files]
        models = [_load(path) for path in model_files]
        key = "fp32_flat_groups" if self._zero_stage == 3 else "single_partition_of_fp32_groups"
        return _DataParallelGroup(
            shapes=[dict(group) for group in models[0]["param_shapes"]],
            paddings=states[0].get("param_alignment_paddings"),
            flat=[
                [_complete(tensor, self._swap_folder(rank, model_rank)) for tensor in state[key]]
                for rank, state in enumerate(states)
            ],
            fragments=[model.get("frozen_param_fragments") or {} for model in models],
            frozen_shapes=dict(models[0].get("frozen_param_shapes") or {}),
            interleaved=self._zero_stage == 3,
        )

    def _swap_folder(self, data_rank: int, model_rank: int) -> Path:
        """Where DeepSpeed copies the files of an NVMe optimizer; pipelines have none, and global ranks are data x tensor."""
        return self._folder / "offloaded_tensors" / f"rank{data_rank * self._tensor_parallel_size + model_rank:02d}"


class _DataParallelGroup:
    """Flat partitions of one group of data-parallel ranks. ``interleaved``: each parameter is cut by itself (stage 3)."""

    def __init__(
        self,
        *,
        shapes: Sequence[Mapping[str, Sequence[int]]],
        paddings: Sequence[Sequence[int]] | None,
        flat: Sequence[Sequence[Tensor]],
        fragments: Sequence[Mapping[str, Tensor]],
        frozen_shapes: Mapping[str, Sequence[int]],
        interleaved: bool,
    ) -> None:
        self._flat = flat
        self._fragments = fragments
        self.frozen_shapes = frozen_shapes
        self._interleaved = interleaved
        self.places = dict(self._places(shapes, paddings))

    def _places(
        self, shapes: Sequence[Mapping[str, Sequence[int]]], paddings: Sequence[Sequence[int]] | None
    ) -> Iterator[tuple[str, tuple[int, int, torch.Size]]]:
        """Name -> group, offset in the group's vector (of one rank when interleaved), shape."""
        for number, group in enumerate(shapes):
            offset = 0
            for position, (name, shape) in enumerate(group.items()):
                size = torch.Size(shape)
                yield name, (number, offset, size)
                offset += -(-size.numel() // len(self._flat)) if self._interleaved else size.numel()
                offset += 0 if paddings is None or self._interleaved else paddings[number][position]

    def tensor(self, name: str) -> Tensor:
        number, offset, shape = self.places[name]
        parts = [partitions[number] for partitions in self._flat]
        if self._interleaved:
            length = -(-shape.numel() // len(parts))
            return _assemble([part.narrow(0, offset, length) for part in parts], shape)
        return _assemble(list(_overlaps(parts, offset, offset + shape.numel())), shape)

    def frozen(self, name: str) -> Tensor:
        parts = [fragments[name].flatten() for fragments in self._fragments]
        return _assemble(parts if self._interleaved else parts[:1], torch.Size(self.frozen_shapes[name]))


def _overlaps(parts: Iterable[Tensor], start: int, stop: int) -> Iterator[Tensor]:
    """The pieces of vectors that lie one after the other, between ``start`` and ``stop`` of the whole."""
    begin = 0
    for part in parts:
        end = begin + part.numel()
        first, last = max(start, begin), min(stop, end)
        if first < last:
            yield part.narrow(0, first - begin, last - first)
        begin = end


def _assemble(pieces: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """One tensor from the flat pieces of all ranks; what the last is filled up with goes."""
    return torch.cat([piece.flatten() for piece in pieces])[: shape.numel()].view(shape)


def _complete(tensor: Tensor, swap_folder: Path) -> Tensor:
    """A partition, from the NVMe copy where the checkpoint file holds an empty one."""
    if tensor.numel() > 0 or not hasattr(tensor, "ds_id"):
        return tensor.detach()
    path = swap_folder / f"{tensor.ds_id}.tensor.swp"
    # aligned for direct I/O: longer than the partition
    return torch.from_file(str(path), shared=False, size=path.stat().st_size // tensor.element_size(), dtype=tensor.dtype)


def _by_data_rank(folder: Path, pattern: str) -> list[Path]:
    def rank(path: Path) -> int:
        found = re.search(r"zero_pp_rank_(\d+)_", path.name)
        assert found is not None
        return int(found[1])

    return sorted(folder.glob(pattern), key=rank)


@cache
def _load(path: Path) -> dict[str, Any]:
    """A file of the run's own checkpoint, mapped into memory."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    return state
