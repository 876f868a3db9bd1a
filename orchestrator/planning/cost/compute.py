"""Seconds of computing: the layers of a pass, the embedding, and the head with the loss, on one tensor-parallel rank.

A matrix product of ``m x k`` and ``k x n`` takes its ``2 m n k`` operations at the rate of the largest products, and its three
matrices once over the memory bandwidth: the sum saturates in every dimension, so a small head, a thin shard or a short
micro-batch is slow by itself. What lies between the products is element-wise: it moves what autograd saves (``layers.py``),
written once and read once in the forward pass. A pass cannot be faster than the host can launch its operations. Sizes may be
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import RecomputePolicy
from orchestrator.planning.attention import attention_kernel
from orchestrator.planning.broadcast import choose, larger
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.kernels import AttentionKernel
from orchestrator.planning.layers import layer_activation_bytes
from orchestrator.planning.memory.activations import Pass
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide

FORWARD_PASSES = 2
"""Times the saved bytes move in the forward pass: written, and read by the next operation."""
BACKWARD_PASSES = 3
"""The same in the backward pass: read, with a gradient that is read and one that is written."""
FLASH_EFFICIENCY = 0.65
"""Share of the best product's rate that fused attention reaches (Dao 2023, FlashAttention-2: 190-225 of 312 TFLOP/s on A100)."""
MATRIX_UNIT_ELEMENTS = 8
"""Matrix units take 16-bit products whose inner size is a multiple of this (NVIDIA, "Matrix multiplication background")."""
LAYER_OPERATIONS = 40
"""Operations that the host launches for a layer's forward pass; the backward pass, which autograd drives, takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """One transformer layer and one micro-batch."""

    products: Size
    """Matrix products of a forward pass; a backward pass takes twice that."""
    attention_forward: Size
    attention_backward: Size
    element_wise: Size
    """Of a forward pass."""
    launches: Size
    """The least a pass takes."""

    @property
    def forward(self) -> Size:
        """The forward pass."""
        return larger(self.products + self.attention_forward + self.element_wise, self.launches)

    @property
    def backward(self) -> Size:
        """The backward pass without what is computed again."""
        element_wise = self.element_wise * (BACKWARD_PASSES / FORWARD_PASSES)
        return larger(2 * self.products + self.attention_backward + element_wise, self.launches)

    def recomputed(self, policy: RecomputePolicy) -> Size:
        """What is computed again in the backward pass: the layer, or its attention."""
        match policy:
            case RecomputePolicy.none:
                return 0 * self.products
            case RecomputePolicy.selective:
                return self.attention_forward
            case RecomputePolicy.full | RecomputePolicy.every_k_layers:
                return self.forward


def product_seconds(rows: Size, inner: Size, columns: Size, *, element_bytes: int, speeds: Speeds) -> Size:
    """A matrix product of ``rows x inner`` and ``inner x columns``."""
    moved = rows * inner + inner * columns + rows * columns
    return 2.0 * rows * inner * columns / speeds.matmul_flops + element_bytes * moved / speeds.memory_bandwidth


def layer_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> LayerSeconds:
    """The layers of ``spec`` are alike."""
    tokens = passed.micro_batch * passed.sequence_length
    widths = spec.layer_widths(passed.tensor_parallel_size)
    hidden, size = spec.hidden_size, {"element_bytes": passed.dtype_bytes, "speeds": speeds}
    inner = widths.intermediate * (2 if spec.facts.gated_mlp else 1)
    products = (
        product_seconds(tokens, hidden, widths.query + 2 * widths.key_value, **size)
        + product_seconds(tokens, widths.query, hidden, **size)
        + product_seconds(tokens, hidden, inner, **size)
        + product_seconds(tokens, widths.intermediate, hidden, **size)
    )
    forward, backward = _attention_seconds(spec, passed, speeds)
    moved = layer_activation_bytes(
        spec, **passed.sizes_and_kernels, recompute=RecomputePolicy.none, accelerator=passed.accelerator
    )
    return LayerSeconds(
        products=products,
        attention_forward=forward,
        attention_backward=backward,
        element_wise=FORWARD_PASSES * moved / speeds.memory_bandwidth,
        launches=LAYER_OPERATIONS * speeds.launch_seconds,
    )


def _attention_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> tuple[Size, Size]:
    """The two products of queries with keys and of scores with values, forward and backward."""
    heads = ceil_divide(spec.num_attention_heads, passed.tensor_parallel_size)
    length, size = passed.sequence_length, spec.head_dim
    kernel = attention_kernel(spec, dtype_bytes=passed.dtype_bytes, accelerator=passed.accelerator, kernels=passed.kernels)
    rows = passed.micro_batch * heads
    fits_units = passed.dtype_bytes > 2 or size % MATRIX_UNIT_ELEMENTS == 0
    flops = 4.0 * rows * length * length * size
    if kernel is AttentionKernel.fused:
        rate = speeds.matmul_flops * FLASH_EFFICIENCY if fits_units else speeds.plain_flops
        moved = 4 * rows * length * size * passed.dtype_bytes / speeds.memory_bandwidth
        forward = flops / 2 / rate + moved
        return forward, 2.5 * forward
    rate = speeds.matmul_flops if fits_units else speeds.plain_flops
    moved = 2 * rows * (2 * length * size + length * length) * passed.dtype_bytes / speeds.memory_bandwidth
    forward = flops / rate + moved
    return forward, 2 * forward


def embedding_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> tuple[Size, Size]:
    """Forward and backward of the embedding: rows are copied, and added to a gradient that is made whole."""
    tokens = passed.micro_batch * passed.sequence_length
    rows = tokens * spec.hidden_size * passed.dtype_bytes
    table = ceil_divide(spec.vocab_size, passed.tensor_parallel_size) * spec.hidden_size * passed.dtype_bytes
    return 3 * rows / speeds.memory_bandwidth, (3 * rows + table) / speeds.memory_bandwidth


def head_seconds(spec: ModelSpec, passed: Pass, speeds: Speeds) -> tuple[Size, Size]:
    """Forward and backward of final norm, head and loss: a product with the vocabulary, and passes over its logits in fp32."""
    tokens = passed.micro_batch * passed.sequence_length
    columns = ceil_divide(spec.vocab_size, passed.tensor_parallel_size)
    product = product_seconds(tokens, spec.hidden_size, columns, element_bytes=passed.dtype_bytes, speeds=speeds)
    logits = tokens * columns * (passed.dtype_bytes + 4) / speeds.memory_bandwidth
    return product + 2 * logits, 2 * product + logits


def gradient_seconds(num_parameters: Size, *, accumulates: Size, gradient_bytes: int, dtype_bytes: int, speeds: Speeds) -> Size:
    """Adding one micro-batch's weight gradients to those of the step; the first is only written."""
    moved = num_parameters * (dtype_bytes + choose(accumulates, 2 * gradient_bytes, 0))
    return moved / speeds.memory_bandwidth
