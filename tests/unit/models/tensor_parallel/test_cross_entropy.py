"""The loss in the logits' memory against torch's, on one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from orchestrator.models.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from orchestrator.models.tensor_parallel.group import ALONE

IGNORED = -100


def expected(
    logits: Tensor, labels: Tensor, *, vocab_size: int, smoothing: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Loss and gradient by torch, of the same values in the type of ``logits``."""
    logits = logits.detach().clone().requires_grad_()
    scores = logits[:, :vocab_size]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    loss = F.cross_entropy(scores, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing)
    loss.backward()
    return loss.detach(), logits.grad


def ours(logits: Tensor, labels: Tensor, *, vocab_size: int, **options: Any) -> tuple[Tensor, Tensor]:
    """Loss and gradient by the function under test."""
    logits = logits.detach().clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=vocab_size, **options)
    loss.backward()
    return loss.detach(), logits.grad


def sample(num_tokens: int, vocab_size: int, padding: int = 0, *, seed: int = 0, spread: float = 4.0) -> tuple[Tensor, Tensor]:
    """Logits, and labels of which about a quarter do not count."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_tokens, vocab_size + padding, generator=generator) * spread
    labels = torch.randint(vocab_size, (num_tokens,), generator=generator)
    ignored = torch.rand(num_tokens, generator=generator) < 0.25
    return logits, labels.masked_fill(ignored, IGNORED)


@settings(max_examples=60)
@given(
    num_tokens=st.integers(0, 20),
    vocab_size=st.integers(1, 40),
    padding=st.integers(0, 5),
    chunk_tokens=st.integers(1, 25),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    softcap=st.sampled_from([None, 3.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_it_equals_torch_for_any_shape_and_option(num_tokens, vocab_size, padding, chunk_tokens, smoothing, softcap, seed):
    logits, labels = sample(num_tokens, vocab_size, padding, seed=seed)
    loss, gradient = ours(
        logits, labels, vocab_size=vocab_size, label_smoothing=smoothing, softcap=softcap, chunk_tokens=chunk_tokens
    )
    # In double precision, so that only our own rounding is measured.
    exact_loss, exact = expected(logits.double(), labels, vocab_size=vocab_size, smoothing=smoothing, softcap=softcap)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-5, atol=1e-6)
    assert not gradient[:, vocab_size:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_the_gradient_of_half_precision_logits_is_the_exact_one_rounded_once(dtype, softcap):
    logits, labels = sample(300, 500)
    logits = logits.to(dtype)
    loss, gradient = ours(logits, labels, vocab_size=500, softcap=softcap, label_smoothing=0.1, chunk_tokens=64)
    exact_loss, exact = expected(logits.double(), labels, vocab_size=500, smoothing=0.1, softcap=softcap)
    assert gradient.dtype == dtype
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-6, atol=0)
    rounded = exact.to(dtype)
    # A value next to the middle of two representable ones may go either way; no more than one place.
    assert (gradient != rounded).double().mean() < 1e-3
    torch.testing.assert_close(gradient.double(), rounded.double(), rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_a_large_common_offset_of_the_logits_changes_nothing():
    logits, labels = sample(50, 30)
    shifted = (logits + 512).detach()
    loss, gradient = ours(shifted, labels, vocab_size=30)
    exact_loss, exact = expected(shifted.double(), labels, vocab_size=30, smoothing=0.0, softcap=None)
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-5, atol=1e-6)


def test_without_a_token_that_counts_loss_and_gradient_are_zero():
    logits, labels = sample(5, 7)
    loss, gradient = ours(logits, torch.full_like(labels, IGNORED), vocab_size=7, label_smoothing=0.1)
    assert loss == 0
    assert not gradient.any()


def test_the_ignored_label_can_be_chosen():
    logits, labels = sample(9, 7)
    with_zero = labels.masked_fill(labels == IGNORED, 0)
    loss, _ = ours(logits, with_zero, vocab_size=7, ignore_index=0)
    torch.testing.assert_close(loss, F.cross_entropy(logits, with_zero, reduction="sum", ignore_index=0))


@pytest.mark.parametrize("label", [-1, 7, 8])
def test_a_label_outside_the_vocabulary_gives_no_number(label):
    logits, labels = sample(5, 7, padding=3)
    labels[2] = label
    assert vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=7).isnan()


def test_the_upstream_gradient_scales_the_gradient():
    logits, labels = sample(5, 7)
    _, gradient = expected(logits, labels, vocab_size=7, smoothing=0.0, softcap=None)
    logits.requires_grad_()
    (vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=7) * 1024).backward()
    torch.testing.assert_close(logits.grad, gradient * 1024)


def test_the_gradient_lies_in_the_memory_of_the_logits():
    hidden = torch.randn(6, 4, requires_grad=True)
    labels = sample(6, 8)[1]
    logits = hidden @ torch.randn(4, 8)
    gradients: list[Tensor] = []
    logits.register_hook(gradients.append)
    vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=8).backward()
    assert gradients[0].data_ptr() == logits.data_ptr()


def test_a_second_backward_pass_is_refused():
    logits, labels = sample(6, 8)
    loss = vocab_parallel_cross_entropy(logits.requires_grad_(), labels, group=ALONE, vocab_size=8)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="logits now hold the gradient"):
        loss.backward()


def test_logits_that_were_changed_before_the_backward_pass_are_refused():
    logits, labels = sample(6, 8)
    logits = logits.requires_grad_() * 1
    loss = vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=8)
    with torch.no_grad():
        logits.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_saved_for_the_backward_pass_are_the_logits_themselves_and_a_few_numbers_a_token():
    logits, labels = sample(64, 512)
    logits.requires_grad_()
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=512, label_smoothing=0.1, softcap=9.0)
    others = [tensor for tensor in saved if tensor.data_ptr() not in (logits.data_ptr(), labels.data_ptr())]
    assert logits.data_ptr() in {tensor.data_ptr() for tensor in saved}
    assert sum(tensor.nbytes for tensor in others) == 2 * 4 * 64


@pytest.mark.parametrize("no_gradient", [torch.no_grad, torch.inference_mode])
def test_evaluation_saves_nothing_and_leaves_the_logits_alone(no_gradient):
    logits, labels = sample(20, 8)
    before = logits.clone()
    logits.requires_grad_()
    with no_gradient():
        loss = vocab_parallel_cross_entropy(logits, labels, group=ALONE, vocab_size=8, softcap=5.0, chunk_tokens=6)
    assert not loss.requires_grad
    assert torch.equal(logits, before)


class NewTensors(TorchDispatchMode):
    """Notes the bytes of every tensor that an operation makes in new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: list[int] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        old = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in old:
                self.num_bytes.append(leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("softcap", "copies"), [(None, 0), (5.0, 1)])
def test_each_pass_makes_the_memory_for_one_chunk_and_nothing_larger(dtype, softcap, copies):
    logits, labels = sample(512, 256)
    logits = logits.to(dtype).requires_grad_() * 1
    num_chunks, chunk_bytes = 16, 32 * 256 * 4
    with NewTensors() as new:
        loss = vocab_parallel_cross_entropy(
            logits, labels, group=ALONE, vocab_size=256, label_smoothing=0.1, softcap=softcap, chunk_tokens=32
        )
        (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.data_ptr() == logits.data_ptr()
    assert max(new.num_bytes) == chunk_bytes
    # Of a few numbers a token, or of a chunk: once for each pass, and for the slope of the cap once a chunk.
    large = [num_bytes for num_bytes in new.num_bytes if num_bytes > 8 * 512 * 4]
    assert large == [chunk_bytes] * (2 + copies * num_chunks)
