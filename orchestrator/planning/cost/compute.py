"""Seconds of computing: the layers of a pass, the embedding, and the head with the loss, on one tensor-parallel rank.

A matrix product of ``m x k`` and ``k x n`` takes its ``2 m n k`` operations at the rate of the largest products, and its three
matrices once over the memory bandwidth: the sum saturates in every dimension, so a small head, a thin shard or a short
micro-batch is slow by itself. What lies between the products is element-wise and moves what autograd saves (``layers.py``).
Sizes may be arrays.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.config.enums import Accelerator, RecomputePolicy
from orchestrator.planning.attention import attention_kernel, gets_document_masks, recomputed_attention_bytes
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.kernels import FP32_BYTES, AttentionKernel
from orchestrator.planning.layers import layer_activation_bytes
from orchestrator.planning.memory.activations import Pass
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide

FORWARD_MOVES = 1.5
"""How often the saved bytes of a layer cross the memory bandwidth in its forward pass: they are written, and what does not
stay in the cache is read. Fitted with ``BACKWARD_MOVES`` to half of vTrain's steps on one host and Narayanan's table 1."""
BACKWARD_MOVES = 3.3
"""The same in the backward pass: they are read, and gradients of their size are written and read."""
FLASH_EFFICIENCY = 0.65
"""Share of the largest product's rate that fused attention reaches (Dao 2023, FlashAttention-2: 190 to 225 TFLOP/s on A100)."""
FLASH_BACKWARD = 2.5
"""Backward products of fused attention over those of the forward pass: it makes the scores again."""
MATRIX_UNIT_ELEMENTS = 8
"""Matrix units take 16-bit products whose inner size is a multiple of this (NVIDIA, "Matrix multiplication background")."""
LAYER_OPERATIONS = 100
"""Operations that the host launches for one pass through a layer, counted with their preparation in Python."""
TENSOR_PARALLEL_OPERATIONS = 12
"""Further ones with tensor parallelism: two collectives, and the regions around them."""
LOGIT_MOVES = (2, 1)
"""How often the logits, in the model's format and in fp32, move in the loss: forward, and backward."""


class LayerSeconds(NamedTuple):
    """Forward pass of one transformer layer for one micro-batch, and what differs in the backward pass."""

    products: Size
    """Twice that in the backward pass."""
    attention: Size
    attention_backward: Size
    element_wise: Size
    element_wise_backward: Size
    recomputed: Size
    """What is computed again in the backward pass."""
    launches: Size
    """The host needs so long for one pass; the device cannot be faster."""

    @property
    def forward(self) -> Size:
        """The forward pass."""
        return self.products + self.attention + self.element_wise

    @property
    def backward(self) -> Size:
        """The backward pass without what is computed again."""
        return 2 * self.products + self.attention_backward + self.element_wise_backward


def product_seconds(rows: Size, inner: Size, columns: Size, *, element_bytes: int, speeds: Speeds) -> Size:
    """A matrix product of ``rows x inner`` and ``inner x columns``."""
    moved = rows * inner + inner * columns + rows * columns
    return 2.0 * rows * inner * columns / speeds.matmul_flops + element_bytes * moved / speeds.memory_bandwidth


def layer_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> LayerSeconds:
    """Any layer of ``spec``: they are alike."""
    tokens = passed.micro_batch * passed.sequence_length
    widths = spec.layer_widths(passed.tensor_parallel_size)
    hidden, bytes_each = spec.hidden_size, passed.dtype_bytes
    first = widths.intermediate * (2 if spec.facts.gated_mlp else 1)
    products = sum(
        product_seconds(tokens, inner, columns, element_bytes=bytes_each, speeds=speeds)
        for inner, columns in (
            (hidden, widths.query + 2 * widths.key_value),
            (widths.query, hidden),
            (hidden, first),
            (widths.intermediate, hidden),
        )
    )
    attention, attention_backward = _attention_seconds(spec, passed, speeds)
    saved = layer_activation_bytes(
        spec, **passed.sizes_and_kernels, recompute=RecomputePolicy.none, accelerator=passed.accelerator
    )
    saved_seconds = saved / speeds.memory_bandwidth
    operations = LAYER_OPERATIONS + TENSOR_PARALLEL_OPERATIONS * (passed.tensor_parallel_size > 1)
    launches = operations * speeds.launch_seconds
    # A GPU works while its host launches what comes next; a CPU does both itself.
    prepared = launches if passed.accelerator is Accelerator.cpu else 0.0
    element_wise = FORWARD_MOVES * saved_seconds + prepared
    forward = products + attention + element_wise
    return LayerSeconds(
        products=products,
        attention=attention,
        attention_backward=attention_backward,
        element_wise=element_wise,
        element_wise_backward=BACKWARD_MOVES * saved_seconds + prepared,
        recomputed=_recomputed_seconds(spec, passed, speeds, forward=forward, attention=attention),
        launches=launches,
    )


def _recomputed_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds, *, forward: Size, attention: Size) -> Size:
    if passed.keeps_inputs:
        return forward
    if passed.recompute is RecomputePolicy.none:
        return 0 * forward
    made = recomputed_attention_bytes(
        spec,
        micro_batch=passed.micro_batch,
        sequence_length=passed.sequence_length,
        dtype_bytes=passed.dtype_bytes,
        tensor_parallel_size=passed.tensor_parallel_size,
        accelerator=passed.accelerator,
        kernels=passed.kernels,
    )
    return attention + FORWARD_MOVES * made / speeds.memory_bandwidth


def _attention_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> tuple[Size, Size]:
    """Products of queries with keys and of scores with values, forward and backward.

    Fused attention computes the causal half and moves no scores; without it they are written by one product and read by the
    other. With a mask that keeps documents apart a fused kernel computes every pair, and each head reads the mask. Heads whose
    size is no multiple of ``MATRIX_UNIT_ELEMENTS`` do not run on the matrix units.
    """
    heads = passed.micro_batch * ceil_divide(spec.num_attention_heads, passed.tensor_parallel_size)
    length, size = passed.sequence_length, spec.head_dim
    kernel = attention_kernel(spec, dtype_bytes=passed.dtype_bytes, accelerator=passed.accelerator, kernels=passed.kernels)
    on_units = passed.dtype_bytes >= FP32_BYTES or size % MATRIX_UNIT_ELEMENTS == 0
    rate = speeds.matmul_flops if on_units else speeds.plain_flops
    operations = 4.0 * heads * length * length * size
    vectors = 4 * heads * length * size
    if kernel is AttentionKernel.fused:
        share = FLASH_EFFICIENCY if on_units else 1.0
        masked = gets_document_masks(spec, passed.kernels)
        pairs, read = (operations, vectors + heads * length * length) if masked else (operations / 2, vectors)
        forward = pairs / (rate * share) + read * passed.dtype_bytes / speeds.memory_bandwidth
        return forward, FLASH_BACKWARD * forward
    moved = (vectors + 2 * heads * length * length) * passed.dtype_bytes
    forward = operations / rate + moved / speeds.memory_bandwidth
    return forward, 2 * forward


def embedding_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> tuple[Size, Size]:
    """Forward and backward of the embedding: rows are copied, and added to a gradient as large as the table."""
    rows = 3 * passed.micro_batch * passed.sequence_length * spec.hidden_size
    table = ceil_divide(spec.vocab_size, passed.tensor_parallel_size) * spec.hidden_size
    each = passed.dtype_bytes / speeds.memory_bandwidth
    return rows * each, (rows + table) * each


def head_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> tuple[Size, Size]:
    """Forward and backward of head and loss: the product with the vocabulary, and passes over its logits."""
    tokens = passed.micro_batch * passed.sequence_length
    columns = ceil_divide(spec.vocab_size, passed.tensor_parallel_size)
    product = product_seconds(tokens, spec.hidden_size, columns, element_bytes=passed.dtype_bytes, speeds=speeds)
    logits = tokens * columns * (passed.dtype_bytes + FP32_BYTES) / speeds.memory_bandwidth
    forward, backward = LOGIT_MOVES
    return product + forward * logits, 2 * product + backward * logits


def gradient_seconds(num_parameters: Size, *, accumulates: Size, gradient_bytes: int, dtype_bytes: int, speeds: Speeds) -> Size:
    """Adding a micro-batch's weight gradients to those of the step; a single micro-batch only writes them."""
    moved = num_parameters * (dtype_bytes + 2 * gradient_bytes * accumulates)
    return moved / speeds.memory_bandwidth
