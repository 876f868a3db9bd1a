"""Pretrained weights: each rank reads the slices it holds, one tensor at a time, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.models.layers import Fill
from orchestrator.models.shards import HfParameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """A safetensors file and the name a tensor has in it."""

    file: Path
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedWeights:
    """Where the tensors of a Hugging Face model are, by the names its parameters have there. Shapes are known to be right."""

    places: Mapping[str, TensorPlace]


def stored_weights(source: PretrainedWeights, group: TensorParallelGroup) -> Fill:
    """What fills the parameters of a model from a folder: only the bytes this rank of ``group`` holds are read.

    Host memory holds one parameter at a time. Rows that pad the vocabulary become zero. Filling raises ConfigurationError for
    values that are not finite, or not in the range of the parameter's format.
    """

    def fill(hf: HfParameter, values: Tensor) -> None:
        place = source.places[hf.name]
        stored = read_shard(place, hf, group=group)
        findings = list(_value_findings(stored, place, hf, values.dtype))
        if findings:
            raise ConfigurationError(findings)
        values.copy_(stored)

    return fill


def read_shard(place: TensorPlace, hf: HfParameter, *, group: TensorParallelGroup) -> Tensor:
    """What this rank holds of a tensor, as our parameter lies in memory, in the dtype of the file."""
    with safe_open(place.file, framework="pt", device="cpu") as file:
        stored = file.get_slice(place.name)
        assert tuple(stored.get_shape()) == hf.shape
        local = _pieces(stored, hf, group)
        return local.t() if hf.transposed else local


def _pieces(stored: Any, hf: HfParameter, group: TensorParallelGroup) -> Tensor:
    if hf.split is None:
        whole: Tensor = stored[:]
        return whole
    dim = hf.split.dim
    before = (slice(None),) * dim
    pieces = [
        stored[(*before, slice(start, start + length))] for start, length in hf.split.pieces(group.rank, group.size) if length
    ]
    missing = hf.split.local_length(group.size) - sum(piece.shape[dim] for piece in pieces)
    if missing:
        like = pieces[0] if pieces else stored[(*before, slice(0, 1))]
        shape = list(like.shape)
        shape[dim] = missing
        pieces.append(like.new_zeros(shape))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def _value_findings(values: Tensor, place: TensorPlace, hf: HfParameter, dtype: torch.dtype) -> Iterator[Finding]:
    if values.numel() == 0:
        return
    smallest, largest = values.aminmax()
    if not (torch.isfinite(smallest) and torch.isfinite(largest)):
        message = f"tensor {hf.name} in {place.file} has values that are NaN or infinite"
        yield error("pretrained-values", "model.pretrained", message, "name a folder with finite weights")
        return
    extreme = max(smallest.item(), largest.item(), key=abs)
    if abs(extreme) > torch.finfo(dtype).max:
        message = f"tensor {hf.name} in {place.file} has the value {extreme:.3g}, which {dtype} cannot hold"
        yield error("pretrained-values", "precision.dtype", message, "train in bf16 or fp32")
