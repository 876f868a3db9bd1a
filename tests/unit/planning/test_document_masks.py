"""What the planner says attention that starts anew at each document keeps, against what stays alive in the model."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.enums import Accelerator, AttentionImplementation, RecomputePolicy
from orchestrator.planning.kernels import Kernels
from orchestrator.planning.layers import (
    document_mask_bytes,
    embedding_activation_bytes,
    final_norm_activation_bytes,
    keeps_document_masks,
    layer_activation_bytes,
    layer_working_bytes,
    logits_bytes,
)
from orchestrator.planning.model_spec import ModelSpec
from tests.unit.planning.own_model import bytes_after_forward, documents, peak_bytes
from tests.unit.planning.test_layers import CASES, make_spec

KERNELS = Kernels(masks_documents=True)
NONE, FULL, SELECTIVE = RecomputePolicy.none, RecomputePolicy.full, RecomputePolicy.selective


def saved(spec: ModelSpec, dtype_bytes: int, shape: tuple[int, int], policy: RecomputePolicy) -> int:
    """Of the layers and what they share, masks that only the latest micro-batch has included."""
    sizes = {"micro_batch": shape[0], "sequence_length": shape[1], "dtype_bytes": dtype_bytes, "kernels": KERNELS}
    keep: dict[str, Any] = {"recompute": policy, "accelerator": Accelerator.cpu}
    latest = 0 if keeps_document_masks(spec, dtype_bytes=dtype_bytes, kernels=KERNELS, **keep) else 1
    layers = spec.num_hidden_layers * layer_activation_bytes(spec, **sizes, **keep)
    return layers + embedding_activation_bytes(spec, **sizes, **keep) + latest * document_mask_bytes(spec, **sizes)


def after_forward(spec: ModelSpec, dtype_bytes: int, shape: tuple[int, int], policy: RecomputePolicy) -> int:
    sizes = {"micro_batch": shape[0], "sequence_length": shape[1], "dtype_bytes": dtype_bytes, "kernels": KERNELS}
    return saved(spec, dtype_bytes, shape, policy) + final_norm_activation_bytes(spec, **sizes)


def peak(spec: ModelSpec, dtype_bytes: int, shape: tuple[int, int], policy: RecomputePolicy) -> int:
    sizes = {"micro_batch": shape[0], "sequence_length": shape[1], "dtype_bytes": dtype_bytes, "kernels": KERNELS}
    at_loss = final_norm_activation_bytes(spec, **sizes) + logits_bytes(spec, **sizes)
    working = layer_working_bytes(spec, **sizes, recompute=policy, accelerator=Accelerator.cpu)
    return saved(spec, dtype_bytes, shape, policy) + max(at_loss, working)


@pytest.mark.parametrize("policy", [NONE, FULL, SELECTIVE])
@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize(("model_type", "attention"), CASES)
def test_what_a_micro_batch_of_documents_keeps(
    model_type: str, attention: AttentionImplementation, dtype_bytes: int, policy: RecomputePolicy
) -> None:
    case = (make_spec(model_type, attention), dtype_bytes, (3, 128), policy)
    measured = bytes_after_forward(*case, positions=documents(case[2]))
    assert after_forward(*case) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("model_type", "dropout", "entries"),
    [
        ("gpt2", 0.1, {}),
        ("gpt_neox", 0.1, {}),
        ("mistral", 0.0, {"sliding_window": 64}),
        ("qwen3", 0.0, {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}),
        ("gemma2", 0.0, {"sliding_window": 32}),
        ("phi3", 0.0, {"num_key_value_heads": 4}),
    ],
)
def test_windows_and_dropout_beside_documents(model_type: str, dropout: float, entries: dict[str, Any]) -> None:
    for policy in (NONE, FULL):
        case = (make_spec(model_type, None, dropout, **entries), 2, (2, 128), policy)
        measured = bytes_after_forward(*case, positions=documents(case[2]))
        assert after_forward(*case) == pytest.approx(measured, rel=0.01), policy


@pytest.mark.parametrize("policy", [NONE, FULL, SELECTIVE])
@pytest.mark.parametrize(("model_type", "attention"), CASES)
def test_the_peak_of_a_micro_batch_of_documents(
    model_type: str, attention: AttentionImplementation, policy: RecomputePolicy
) -> None:
    case = (make_spec(model_type, attention), 2, (4, 256), policy)
    assert peak(*case) == pytest.approx(peak_bytes(*case, positions=documents(case[2])), rel=0.012)
