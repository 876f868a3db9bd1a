"""Bytes that a DeepSpeed engine holds, by component: every storage once, found by walking what the engine's objects hold."""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.multiprocessing.reductions import StorageWeakRef

BUCKETS = "reduce_buckets"
COMPONENTS = (
    (BUCKETS, re.compile(r"ipg|bucket")),
    ("allgather_buffers", re.compile(r"allgather_buffer")),
    ("gradients", re.compile(r"grad")),
    ("swap_buffers", re.compile(r"swap")),
    ("optimizer_states", re.compile(r"fp32|^optimizer$|^backup_optimizer$|muon")),
    ("parameters", re.compile(r"16|param")),
)
"""What an attribute of DeepSpeed's optimizer wrapper holds, by its name; the first that fits."""

_DEPTH = 12


class EngineBytes:
    """Counts an engine, as often as wanted. ``baseline`` are the storages that were there before it (``storages``).

    ``kind`` counts those on one kind of device alone, ``cpu`` or ``cuda``.
    """

    def __init__(self, engine: Any, *, baseline: Sequence[UntypedStorage], kind: str | None = None) -> None:
        self._engine = engine
        self._baseline = baseline
        self._kind = kind
        # A gradient may be a view of a bucket that the optimizer has let go of. By address, with what tells whether it is still
        # the bucket's.
        self._buckets: dict[int, StorageWeakRef] = {}

    def count(self) -> dict[str, int]:
        """Bytes of each component now, and as ``other`` those of all further tensors."""
        claims = _Claims(self._baseline, self._buckets, self._kind)
        parameters = list(self._engine.module.parameters())
        shards = [parameter.ds_tensor for parameter in parameters if hasattr(parameter, "ds_tensor")]
        claims.claim("parameters", shards or parameters)
        claims.claim("gathered_parameters", parameters)
        attributes = dict(vars(self._engine.optimizer))
        for component, names in COMPONENTS:
            own = {name: value for name, value in attributes.items() if names.search(name)}
            attributes = {name: value for name, value in attributes.items() if name not in own}
            claims.claim(component, [own, *self._elsewhere(component, parameters)])
        claims.claim("other", [thing for thing in gc.get_objects() if _is_tensor(thing)])
        return {component: size for component, size in claims.sizes.items() if size}

    def _elsewhere(self, component: str, parameters: Sequence[nn.Parameter]) -> list[Any]:
        """What of a component lies outside the wrapper's attributes."""
        match component:
            case "gradients":
                names = ("grad", "grad_accum", "_hp_grad")
                own = [getattr(parameter, name, None) for parameter in parameters for name in names]
                masters = _tensors([vars(self._engine.optimizer), *_optimizers(self._engine)], _DEPTH, set())
                return [own, [master.grad for master in masters if master.is_leaf]]
            case "swap_buffers":
                return [parameter.nvme_swapper for parameter in parameters if getattr(parameter, "nvme_swapper", None)][:1]
            case "optimizer_states":
                return [optimizer.state for optimizer in _optimizers(self._engine)]
            case _:
                return []


def storages() -> list[UntypedStorage]:
    """The storages of all tensors that are alive; they stay so."""
    return [tensor.untyped_storage() for tensor in gc.get_objects() if _is_tensor(tensor)]


class _Claims:
    """Each storage belongs to the first component that claims it, and one that has been a bucket stays one."""

    def __init__(self, baseline: Sequence[UntypedStorage], buckets: dict[int, StorageWeakRef], kind: str | None) -> None:
        self._kind = kind
        self._seen = {0, *(storage.data_ptr() for storage in baseline)}
        self._buckets = buckets
        self.sizes: dict[str, int] = {}

    def claim(self, component: str, held: Any) -> None:
        for tensor in _tensors(held, _DEPTH, set()):
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address not in self._seen and self._kind in (None, storage.device.type):
                self._seen.add(address)
                if component == BUCKETS:
                    self._buckets[address] = StorageWeakRef(storage)
                bucket = self._buckets.get(address)
                owner = component if bucket is None or bucket.expired() else BUCKETS
                self.sizes[owner] = self.sizes.get(owner, 0) + storage.nbytes()


def _optimizers(engine: Any) -> Iterator[torch.optim.Optimizer]:
    for owner in (engine, engine.optimizer):
        for name in ("basic_optimizer", "optimizer", "backup_optimizer"):
            optimizer = getattr(owner, name, None)
            if isinstance(optimizer, torch.optim.Optimizer):
                yield optimizer


def _tensors(held: Any, depth: int, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor in ``held``: in containers, and in attributes of DeepSpeed's objects. A parameter is not its gradient."""
    if id(held) in seen or depth == 0:
        return
    seen.add(id(held))
    if _is_tensor(held):
        yield held
    elif isinstance(held, Mapping):
        for key, value in held.items():
            yield from _tensors(value, depth - 1, seen)
            if _is_tensor(key):
                yield key
    elif isinstance(held, (list, tuple, set, frozenset, deque)):
        for value in held:
            yield from _tensors(value, depth - 1, seen)
    elif isinstance(held, torch.optim.Optimizer):
        yield from _tensors(held.state, depth - 1, seen)
    elif type(held).__module__.startswith("deepspeed.runtime") and not isinstance(held, nn.Module):
        yield from _tensors(vars(held), depth - 1, seen)


def _is_tensor(thing: Any) -> bool:
    return type(thing) in (Tensor, nn.Parameter)
