"""What autograd keeps for the backward pass, byte for byte, and how that rises and falls during a forward and backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes of saved tensors, each storage once and parameters left out.

    ``after_forward`` is what is kept until the backward pass begins, ``peak`` the most that is alive at any moment of both
    passes: recomputed tensors are saved as well, until the backward pass has used them.
    """

    after_forward: int
    peak: int


def saved_bytes(forward: Callable[[], Tensor], *, excluded: Iterable[Tensor] = ()) -> SavedBytes:
    """Run ``forward`` to a scalar and its backward pass, and watch what is saved. ``excluded`` are the parameters."""
    saved = _Saved(excluded)
    with saved.watching():
        loss = forward()
        after_forward = saved.live_bytes()
        loss.backward()
    return SavedBytes(after_forward=after_forward, peak=saved.peak_bytes)


class _Saved:
    def __init__(self, excluded: Iterable[Tensor]) -> None:
        self.peak_bytes = 0
        self._excluded = {tensor.untyped_storage()._cdata for tensor in excluded}
        # A weak reference keeps the address of a storage from being used again, so it is a key.
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every tensor that is saved, also by the hooks of ``torch.utils.checkpoint``, which hide it from outer hooks."""
        original = saved_tensors_hooks.__init__

        @functools.wraps(original)
        def watched(hooks: Any, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Any]) -> None:
            original(hooks, functools.partial(self._pack, pack), unpack)

        with mock.patch.object(saved_tensors_hooks, "__init__", watched), saved_tensors_hooks(torch.detach, lambda x: x):
            yield

    def live_bytes(self) -> int:
        """Bytes of the storages that were saved and are still there."""
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[0].expired()}
        return sum(size for _, size in self._storages.values())

    def _pack(self, pack: Callable[[Tensor], Any], tensor: Tensor) -> Any:
        """What the hook makes of a tensor stays alive; a checkpoint makes a tensor of its forward pass into nothing."""
        try:
            packed = pack(tensor)
        except BaseException:
            # A checkpoint ends the recomputation this way when it has the last tensor.
            self._add(tensor)
            raise
        for kept in packed if isinstance(packed, tuple) else (packed,):
            if isinstance(kept, Tensor):
                self._add(kept)
        return packed

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._excluded and storage._cdata not in self._storages:
            self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.live_bytes())
