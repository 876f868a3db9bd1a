"""Each rank gets from a weight folder what it would have been given of the whole tensor, and reads no more than that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.errors import ConfigurationError
from orchestrator.models.shards import Block, HfParameter, Split
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.weights import PretrainedWeights, TensorPlace, stored_weights

CASES = {
    "whole": HfParameter(name="a", shape=(6, 8)),
    "rows": HfParameter(name="a", shape=(6, 8), split=Split(dim=0, blocks=(Block(units=6),))),
    "columns": HfParameter(name="a", shape=(6, 8), split=Split(dim=1, blocks=(Block(units=4, unit_size=2),))),
    "transposed": HfParameter(name="a", shape=(6, 8), split=Split(dim=1, blocks=(Block(units=8),)), transposed=True),
    "packed": HfParameter(name="a", shape=(8, 3), split=Split(dim=0, blocks=(Block(units=4), Block(units=2), Block(units=2)))),
    "part of a packed one": HfParameter(
        name="a", shape=(8, 3), split=Split(dim=0, blocks=(Block(units=1, unit_size=2),), start=4)
    ),
    "padded vocabulary": HfParameter(name="a", shape=(7, 4), split=Split(dim=0, blocks=(Block(units=7),))),
    "vector": HfParameter(name="a", shape=(6,), split=Split(dim=0, blocks=(Block(units=6),))),
}


def source(folder: Path, tensor: torch.Tensor) -> PretrainedWeights:
    file = folder / "model.safetensors"
    save_file({"stored": tensor.contiguous()}, file)
    return PretrainedWeights(places={"a": TensorPlace(file=file, name="stored")})


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_rank_reads_what_it_holds(case: str, size: int, tmp_path: Path) -> None:
    hf = CASES[case]
    full = torch.arange(1.0, 1 + torch.Size(hf.shape).numel()).view(hf.shape)
    weights = source(tmp_path, full)
    for rank in range(size):
        group = TensorParallelGroup(rank=rank, size=size)
        values = torch.full(hf.local_shape(size), float("nan"))
        stored_weights(weights, group)(hf, values)
        assert torch.equal(values, hf.cut(full, rank=rank, size=size))


def test_a_rank_without_a_row_of_the_vocabulary_gets_zeros(tmp_path: Path) -> None:
    hf = HfParameter(name="a", shape=(5, 4), split=Split(dim=0, blocks=(Block(units=5),)))
    values = torch.full(hf.local_shape(4), float("nan"))
    stored_weights(source(tmp_path, torch.ones(5, 4)), TensorParallelGroup(rank=3, size=4))(hf, values)
    assert torch.equal(values, torch.zeros(2, 4))


def test_values_take_the_format_of_the_parameter(tmp_path: Path) -> None:
    full = torch.tensor([[1.0 + 2**-12, -3.0]])
    values = torch.empty(1, 2, dtype=torch.bfloat16)
    stored_weights(source(tmp_path, full), TensorParallelGroup())(HfParameter(name="a", shape=(1, 2)), values)
    assert torch.equal(values, full.bfloat16())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_with_tensor_and_file(value: float, tmp_path: Path) -> None:
    full = torch.ones(6, 8)
    full[5, 3] = value
    fill = stored_weights(source(tmp_path, full), TensorParallelGroup(rank=1, size=2))
    with pytest.raises(ConfigurationError) as refusal:
        fill(CASES["rows"], torch.empty(3, 8))
    (finding,) = refusal.value.findings
    assert finding.field == "model.pretrained"
    assert "tensor a " in finding.message
    assert str(tmp_path / "model.safetensors") in finding.message


def test_a_value_that_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    fill = stored_weights(source(tmp_path, torch.tensor([1.0, -70000.0])), TensorParallelGroup())
    with pytest.raises(ConfigurationError) as refusal:
        fill(HfParameter(name="a", shape=(2,)), torch.empty(2, dtype=torch.float16))
    assert "-7e+04" in refusal.value.findings[0].message
