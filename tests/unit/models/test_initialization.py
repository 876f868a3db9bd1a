"""Initial weights depend on the seed alone: not on the dtype, not on ZeRO, not on the order of construction."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.models.build import build_model
from orchestrator.models.initialization import initialize_parameters
from tests.unit.models.tiny import TINY, tiny_spec


def weights(
    model_type: str, *, seed: int = 1, dtype: torch.dtype = torch.float32, **entries: object
) -> dict[str, torch.Tensor]:
    spec = tiny_spec(model_type, **entries)
    model = build_model(spec, dtype=dtype)
    initialize_parameters(model, spec, seed=seed)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("model_type", TINY)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(model_type: str) -> None:
    first, again, other = weights(model_type), weights(model_type), weights(model_type, seed=2)
    assert first.keys() == again.keys()
    for name, weight in first.items():
        assert torch.equal(weight, again[name]), name
        assert torch.equal(weight, other[name]) is (weight.dim() == 1), name


@pytest.mark.parametrize("model_type", TINY)
def test_another_dtype_gives_the_same_weights_rounded(model_type: str) -> None:
    low = weights(model_type, dtype=torch.bfloat16)
    for name, weight in weights(model_type).items():
        assert torch.equal(weight.to(torch.bfloat16), low[name]), name


def test_a_deeper_model_begins_with_the_layers_of_the_shallow_one() -> None:
    deep = weights("llama", num_hidden_layers=3)
    for name, weight in weights("llama").items():
        assert torch.equal(weight, deep[name]), name


def test_no_two_matrices_are_alike() -> None:
    matrices = [weight for weight in weights("llama").values() if weight.shape == (32, 32)]
    assert len(matrices) == 4
    assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == 4


@pytest.mark.parametrize("model_type", TINY)
def test_norms_are_one_biases_zero_and_matrices_have_the_stated_deviation(model_type: str) -> None:
    for name, weight in weights(model_type, initializer_range=0.05).items():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif weight.dim() == 1:
            assert (weight == 1).all(), name
        else:
            residual = name.endswith(("c_proj.weight", "attention.dense.weight", "dense_4h_to_h.weight"))
            expected = 0.05 / math.sqrt(2 * 2) if residual else 0.05
            assert weight.std().item() == pytest.approx(expected, rel=0.12), name
            assert abs(weight.mean().item()) < 0.2 * expected, name


@pytest.mark.parametrize("model_type", TINY)
def test_tied_weights_stay_tied(model_type: str) -> None:
    spec = tiny_spec(model_type, tie_word_embeddings=True)
    model = build_model(spec, dtype=torch.float32)
    initialize_parameters(model, spec, seed=1)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


ZERO_INIT = """
import sys
import torch
from tests.unit.models.tiny import TINY, tiny_spec
from orchestrator.models.build import build_model
from orchestrator.models.initialization import initialize_parameters
import deepspeed

deepspeed.init_distributed("gloo", verbose=False)
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
for model_type in TINY:
    spec = tiny_spec(model_type, tie_word_embeddings=True)
    plain = build_model(spec, dtype=torch.bfloat16)
    initialize_parameters(plain, spec, seed=1)
    model = build_model(spec, dtype=torch.bfloat16, construction=deepspeed.zero.Init(config_dict_or_path=config))
    initialize_parameters(model, spec, seed=1)
    expected = dict(plain.named_parameters())
    assert list(expected) == [name for name, _ in model.named_parameters()], model_type
    for name, parameter in model.named_parameters():
        assert parameter.ds_shape == expected[name].shape, name
        with deepspeed.zero.GatheredParameters([parameter]):
            assert torch.equal(parameter, expected[name]), name
    for (name, buffer), (other_name, other) in zip(model.named_buffers(), plain.named_buffers(), strict=True):
        assert (name, buffer.dtype) == (other_name, other.dtype) and torch.equal(buffer, other), name
    tokens = torch.arange(16)[None]
    optimizer = {"type": "AdamW", "params": {"torch_adam": True}}
    engine, *_ = deepspeed.initialize(model=model, config={**config, "optimizer": optimizer})
    torch.testing.assert_close(engine(input_ids=tokens).logits, plain(input_ids=tokens).logits)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
print("ALL EQUAL")
"""


def test_zero_init_gives_the_same_weights_and_buffers_and_the_same_logits(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    script = tmp_path / "zero_init.py"
    script.write_text(ZERO_INIT)
    root = Path(__file__).parents[3]
    environment["PYTHONPATH"] = str(root)
    result = subprocess.run(
        [sys.executable, script], env=environment, cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert "ALL EQUAL" in result.stdout, result.stderr[-3000:]
