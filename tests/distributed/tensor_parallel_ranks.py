"""What the ranks of a tensor-parallel group do in the tests of its layers; each returns what there is to compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from orchestrator.models.communication.collectives import ALL_GATHER, REDUCE_SCATTER
from orchestrator.models.tensor_parallel import mappings
from orchestrator.models.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from orchestrator.models.tensor_parallel.random_streams import RegionRandomness

COLLECTIVES = ("all_reduce", ALL_GATHER, REDUCE_SCATTER, "all_gather", "reduce_scatter", "broadcast")
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpResult:
    """Largest differences to the dense MLP, and the collectives of a forward and a backward pass."""

    differences: dict[str, float]
    forward: list[str]
    backward: list[str]


def mlp(sequence_parallel: bool, micro_batch: int, recompute: bool) -> MlpResult:
    """A column- and a row-parallel layer against the dense MLP they make up."""
    group = _group(sequence_parallel=sequence_parallel)
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6))
    x = torch.randn(micro_batch, 8, 6, requires_grad=True)
    upstream = torch.randn(micro_batch, 8, 6)
    expected = dense(x)
    expected.backward(upstream)

    columns, rows = _shares_of(dense, group)
    own_x = _own_sequence(x.detach(), group).requires_grad_()

    def region(x: Tensor) -> Tensor:
        return rows(F.gelu(columns(mappings.enter_region(x, group))))

    with _calls() as forward:
        result = checkpoint(region, own_x, use_reentrant=False) if recompute else region(own_x)
    with _calls() as backward:
        result.backward(_own_sequence(upstream, group))
    up, down = dense[0], dense[2]
    pairs = {
        "output": (result, _own_sequence(expected, group)),
        "input gradient": (own_x.grad, _own_sequence(x.grad, group)),
        "column weight": (columns.weight.grad, up.weight.grad.chunk(group.size)[group.rank]),
        "column bias": (columns.bias.grad, up.bias.grad.chunk(group.size)[group.rank]),
        "row weight": (rows.weight.grad, down.weight.grad.chunk(group.size, 1)[group.rank]),
        "row bias": (rows.bias.grad, down.bias.grad),
    }
    return MlpResult(differences=_differences(pairs), forward=forward, backward=backward)


def sequence_mappings(micro_batch: int) -> tuple[dict[str, float], int]:
    """Gathering the ranks' shares against the whole sequence; and how many bytes all the mappings keep for backward."""
    group = _group(sequence_parallel=True)
    torch.manual_seed(0)
    whole = torch.randn(micro_batch, 8, 3)
    part = _own_sequence(whole, group).clone().requires_grad_()
    upstream = torch.randn(micro_batch, 8, 3)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        together = mappings.gather_sequence(part, group)
        mappings.copy_to_region(part, group)
        mappings.leave_region(mappings.reduce_from_region(whole.expand_as(whole).clone(), group), group)
    together.backward(upstream)
    pairs = {"gathered": (together, whole), "gradient": (part.grad, group.size * _own_sequence(upstream, group))}
    return _differences(pairs), sum(saved)


def caller_keeps_its_tensors() -> bool:
    """Whether neither the input of a region nor the gradient that comes to it is overwritten."""
    group = _group()
    x = torch.randn(2, 3, 4, requires_grad=True)
    upstream = torch.randn(2, 3, 4)
    before = x.detach().clone(), upstream.clone()
    mappings.copy_to_region(x, group).backward(upstream)
    strided = torch.randn(2, 4, 3).transpose(1, 2)
    values = strided.clone()
    mappings.reduce_from_region(strided, group)
    return torch.equal(x, before[0]) and torch.equal(upstream, before[1]) and torch.equal(strided, values)


def embedding(sequence_parallel: bool, vocab_size: int) -> dict[str, float]:
    """A divided embedding, its last rows padding, against the whole one."""
    group = _group(sequence_parallel=sequence_parallel)
    torch.manual_seed(0)
    dense = nn.Embedding(vocab_size, 6)
    ids = torch.randint(vocab_size, (3, 8))
    upstream = torch.randn(3, 8, 6)
    expected = dense(ids)
    expected.backward(upstream)
    own = _own_rows(dense.weight, group)
    ours = VocabParallelEmbedding(own.shape[0], 6, group.rank * own.shape[0], group=group)
    _load(ours.weight, own)
    result = ours(ids)
    result.backward(_own_sequence(upstream, group))
    assert dense.weight.grad is not None
    return _differences(
        {
            "output": (result, _own_sequence(expected, group)),
            "gradient": (ours.weight.grad, _own_rows(dense.weight.grad, group)),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """The loss of a rank, torch's, the largest difference of the gradients, and the collectives."""

    loss: float
    expected: float
    gradient_difference: float
    padding_is_zero: bool
    calls: list[str]


def loss(vocab_size: int, smoothing: float, softcap: float | None) -> LossResult:
    """The cross entropy of divided logits, the last columns padding, against torch's."""
    group = _group()
    torch.manual_seed(0)
    logits = (torch.randn(21, vocab_size) * 4).requires_grad_()
    labels = torch.randint(vocab_size, (21,))
    labels[::5] = -100
    scores = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    expected = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
    expected.backward()
    # What stands in the padding must not matter.
    local = _own_rows(logits.detach().t(), group, fill=50.0).t().contiguous().requires_grad_()
    with _calls() as calls:
        result = vocab_parallel_cross_entropy(
            local, labels, group=group, vocab_size=vocab_size, label_smoothing=smoothing, softcap=softcap, chunk_tokens=8
        )
        result.backward()
    assert local.grad is not None and logits.grad is not None
    difference = (local.grad - _own_rows(logits.grad.t(), group).t()).abs().max()
    own_columns = max(0, vocab_size - group.rank * local.shape[1])
    return LossResult(
        loss=float(result),
        expected=float(expected),
        gradient_difference=float(difference),
        padding_is_zero=not local.grad[:, own_columns:].any(),
        calls=calls,
    )


def half_precision(sequence_parallel: bool) -> float:
    """The largest difference of a bf16 region to the same one in fp32."""
    group = _group(sequence_parallel=sequence_parallel)
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6))
    x = torch.randn(2, 8, 6)
    columns, rows = (layer.bfloat16() for layer in _shares_of(dense, group))
    result = rows(F.gelu(columns(mappings.enter_region(_own_sequence(x, group).bfloat16(), group))))
    assert result.dtype == torch.bfloat16
    return _difference(result.float(), _own_sequence(dense(x), group))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutResult:
    """Which elements a rank kept inside a region and outside it, and whether recomputation kept the same."""

    inside: list[bool]
    outside: list[bool]
    recomputed_alike: bool


def dropout() -> DropoutResult:
    """A block with dropout inside a region and after it, which is recomputed for the backward pass."""
    group = _group()
    randomness = RegionRandomness(group)
    masks: list[tuple[Tensor, Tensor]] = []

    def block(x: Tensor) -> Tensor:
        randomness.enter(CPU, active=True)
        inside = F.dropout(mappings.enter_region(x, group), 0.5)
        randomness.leave()
        outside = F.dropout(torch.ones(64), 0.5)
        masks.append((inside != 0, outside != 0))
        return mappings.leave_region(inside * 1, group) * outside

    torch.manual_seed(3)
    x = torch.ones(1, 2, 64, requires_grad=True)
    checkpoint(block, x, use_reentrant=False, early_stop=False).sum().backward()
    (inside, outside), (inside_again, outside_again) = masks
    return DropoutResult(
        inside=inside.flatten().tolist(),
        outside=outside.tolist(),
        recomputed_alike=torch.equal(inside, inside_again) and torch.equal(outside, outside_again),
    )


def gradient_of_a_shared_parameter() -> tuple[float, float]:
    """Smallest and largest element of the gradient of a replicated parameter after two accumulated backward passes."""
    group = _group()
    shared = nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    mappings.sum_gradient(shared, group.process_group)
    mappings.sum_gradient(frozen, group.process_group)
    for _ in range(2):
        ((shared + shared * frozen) * (group.rank + 1)).sum().backward()
    assert shared.grad is not None and frozen.grad is None
    return float(shared.grad.min()), float(shared.grad.max())


def _group(*, sequence_parallel: bool = False) -> TensorParallelGroup:
    dist.init_process_group("gloo")
    return TensorParallelGroup(
        rank=int(os.environ["RANK"]),
        size=int(os.environ["WORLD_SIZE"]),
        process_group=dist.group.WORLD,
        sequence_parallel=sequence_parallel,
    )


def _shares_of(dense: nn.Sequential, group: TensorParallelGroup) -> tuple[ColumnParallelLinear, RowParallelLinear]:
    """The two linear layers of ``dense`` as this rank's share of a region; with a whole gradient of the row bias."""
    up, down = dense[0], dense[2]
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    columns = ColumnParallelLinear(up.in_features, up.out_features // group.size, bias=True, group=group)
    rows = RowParallelLinear(down.in_features // group.size, down.out_features, bias=True, group=group)
    assert columns.bias is not None and rows.bias is not None
    _load(columns.weight, up.weight.chunk(group.size)[group.rank])
    _load(columns.bias, up.bias.chunk(group.size)[group.rank])
    _load(rows.weight, down.weight.chunk(group.size, 1)[group.rank])
    _load(rows.bias, down.bias)
    if group.sequence_parallel:
        mappings.sum_gradient(rows.bias, group.process_group)
    return columns, rows


def _load(parameter: nn.Parameter, values: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(values)


def _own_sequence(x: Tensor, group: TensorParallelGroup) -> Tensor:
    """What this rank holds of ``x`` between the blocks."""
    return x.chunk(group.size, 1)[group.rank].clone() if group.sequence_parallel else x


def _own_rows(x: Tensor, group: TensorParallelGroup, fill: float = 0.0) -> Tensor:
    """This rank's share of the vocabulary, which is padded with ``fill`` to a multiple of the ranks."""
    rows = -(-x.shape[0] // group.size)
    padded = F.pad(x, (0, 0, 0, rows * group.size - x.shape[0]), value=fill)
    return padded[group.rank * rows : (group.rank + 1) * rows]


def _differences(pairs: dict[str, tuple[Any, Any]]) -> dict[str, float]:
    return {name: _difference(*pair) for name, pair in pairs.items()}


def _difference(value: Tensor, expected: Tensor) -> float:
    assert value.shape == expected.shape
    return float((value.detach() - expected.detach()).abs().max())


@contextmanager
def _calls() -> Iterator[list[str]]:
    """The names of the collectives called meanwhile."""
    names: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return real(*args, **kwargs)

        return call

    with patch.multiple(dist, **{name: counted(name) for name in COLLECTIVES}):
        yield names
