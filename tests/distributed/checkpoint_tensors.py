"""Reads a checkpoint; runs in a rank, where the classes that DeepSpeed pickles are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


def tensor_digests(tag_dir: Path) -> dict[str, str]:
    """A checksum of the bytes of every tensor that DeepSpeed saved: weights and optimizer states, partition by partition."""
    return {
        f"{file.name}{place}": hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for file in sorted(tag_dir.glob("*_states.pt"))
        for place, tensor in _tensors(torch.load(file, weights_only=False), "")
    }


def _tensors(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value.reshape(-1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{place}/{index}")
