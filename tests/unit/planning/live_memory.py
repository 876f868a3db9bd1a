"""Counts the bytes of every tensor that is alive, on any device, and their peak."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Tracks the storages that operations create inside the context; those of ``known`` tensors do not count."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._live_bytes = 0
        self.peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes alive now."""
        return self._live_bytes

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or key in self._alive:
            return

        def free(_: Any) -> None:
            self._live_bytes -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, free)
        self._live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return result
