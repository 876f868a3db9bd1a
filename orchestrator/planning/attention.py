"""What attention keeps for the backward pass, by the kernel that Hugging Face's modules end up in.

Hugging Face's ``sdpa`` is torch's ``scaled_dot_product_attention``, which picks a fused kernel when it can and else the
``math`` one, which keeps a score for every pair of tokens as ``eager`` does. On CPU dropout forces it; on CUDA grouped-query
attention in fp32 does, because the only fused fp32 kernel needs as many key heads as query heads.

With an explicit mask (a sliding window, or documents that must not see each other) Hugging Face copies each key head to its
query heads before sdpa. Of truth values torch makes numbers in every layer and keeps them; numbers it keeps as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import Accelerator, AttentionImplementation
from orchestrator.planning.families import rotary_fraction
from orchestrator.planning.kernels import FP32_BYTES, OURS, AttentionKernel, Kernels
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import LayerWidths, Size, ceil_divide

STATISTIC_BYTES = 4
"""A row statistic (reciprocal deviation, log-sum-exp) is fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Sliding-window attention of a model: the window in tokens, and how many layers have it."""

    tokens: int
    layers: int


def sliding_window(spec: ModelSpec) -> SlidingWindow | None:
    """The sliding window of the model, as Hugging Face reads it from the config; ``None`` when no layer has one."""
    facts, hf_config = spec.facts, spec.hf_config
    tokens = hf_config.get("sliding_window", facts.sliding_window)
    if tokens is None or not facts.uses_sliding_window.of(hf_config):
        return None
    layer_types = hf_config.get("layer_types")
    if layer_types is not None:
        layers = list(layer_types).count("sliding_attention")
    else:
        from_first = max(0, spec.num_hidden_layers - int(hf_config.get("max_window_layers", facts.first_sliding_layer)))
        layers = ceil_divide(from_first, facts.sliding_layer_stride)
    return SlidingWindow(tokens=tokens, layers=layers) if layers else None


def score_softcap(spec: ModelSpec) -> float | None:
    """The cap that attention scores run into, or ``None``."""
    key = spec.facts.score_softcap_key
    cap: float | None = None if key is None else spec.hf_config.get(key, spec.facts.score_softcap)
    return cap


def attention_kernel(
    spec: ModelSpec, *, dtype_bytes: int, accelerator: Accelerator, kernels: Kernels = OURS
) -> AttentionKernel:
    """The kernel that runs, from the implementation, the accelerator and what the fused kernels can do."""
    if kernels.attention is not None:
        return kernels.attention
    if spec.attention_implementation is AttentionImplementation.eager:
        return AttentionKernel.eager
    grouped = spec.num_key_value_heads < spec.num_attention_heads and not kernels.masks_documents
    if spec.attention_implementation is AttentionImplementation.sdpa and (
        spec.dropout > 0 if accelerator is Accelerator.cpu else grouped and dtype_bytes == FP32_BYTES
    ):
        return AttentionKernel.math
    return AttentionKernel.fused


def gets_document_masks(spec: ModelSpec, kernels: Kernels) -> bool:
    """Whether attention is given masks that keep documents apart; flash attention is told where they begin."""
    return kernels.masks_documents and spec.attention_implementation is not AttentionImplementation.flash_attention_2


def mask_element_bytes(dtype_bytes: int, accelerator: Accelerator) -> int:
    """Bytes of one element of a dropout mask: torch keeps the scaled noise on CPU and a boolean on CUDA."""
    return dtype_bytes if accelerator is Accelerator.cpu else 1


def saved_attention_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size,
    accelerator: Accelerator,
    kernels: Kernels = OURS,
) -> Size:
    """Bytes that attention keeps between the query, key and value matrices and the output matrix, whose input it includes."""
    tokens = micro_batch * sequence_length
    widths = spec.layer_widths(tensor_parallel_size)
    heads = ceil_divide(spec.num_attention_heads, tensor_parallel_size)
    kernel = attention_kernel(spec, dtype_bytes=dtype_bytes, accelerator=accelerator, kernels=kernels)
    output, mask = widths.query * dtype_bytes, 0
    if kernel is AttentionKernel.fused:
        masked = _is_masked(spec, kernels, sequence_length)
        key_value = masked * widths.query + (1 - masked) * widths.key_value
        per_token = (widths.query + 2 * key_value) * dtype_bytes + output + heads * STATISTIC_BYTES
        if not kernels.masks_documents:
            mask = masked * sequence_length * sequence_length * dtype_bytes
    else:
        inputs = 3 * widths.query * (FP32_BYTES if kernel is AttentionKernel.math else dtype_bytes)
        scores = _score_bytes(
            spec,
            kernel,
            sequence_length=sequence_length,
            dtype_bytes=dtype_bytes,
            tensor_parallel_size=tensor_parallel_size,
            accelerator=accelerator,
        )
        per_token = inputs + output + scores
    if kernels.copies_split_outputs:
        fused_matrix = 2 * widths.query + 2 * widths.key_value
    else:
        fused_matrix = _fused_matrix_elements(
            spec, kernels, kernel, widths, micro_batch=micro_batch, sequence_length=sequence_length, dtype_bytes=dtype_bytes
        )
    if kernels.batch_first_attention:
        fused_matrix = fused_matrix + (widths.query + widths.key_value) * (micro_batch > 1)
    return tokens * (per_token + fused_matrix * dtype_bytes) + mask


def attention_boundary_bytes(spec: ModelSpec, *, dtype_bytes: int, tensor_parallel_size: Size) -> Size:
    """Bytes a token of what goes into the attention function and comes out of it, when all between is recomputed.

    Query, key and value, each key and value head once, and the output. Out of one matrix the value is a view of its whole
    output, which a rotated query and key are not.
    """
    widths = spec.layer_widths(tensor_parallel_size)
    inputs = widths.query + 2 * widths.key_value
    if spec.facts.fused_query_key_value and not spec.facts.learned_positions:
        inputs = inputs + widths.query + widths.key_value
    return (inputs + widths.query) * dtype_bytes


def recomputed_attention_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size,
    accelerator: Accelerator,
    kernels: Kernels = OURS,
) -> Size:
    """Bytes that recomputing the attention function makes beside what ``attention_boundary_bytes`` counts.

    The scores, and what the two products read where it is not the function's own input: key and value heads are repeated,
    a batched product copies an input whose heads lie apart in memory, and the math kernel scales query and key.
    """
    widths = spec.layer_widths(tensor_parallel_size)
    kernel = attention_kernel(spec, dtype_bytes=dtype_bytes, accelerator=accelerator, kernels=kernels)
    grouped = spec.num_key_value_heads < spec.num_attention_heads
    if kernel is AttentionKernel.fused:
        heads = ceil_divide(spec.num_attention_heads, tensor_parallel_size)
        copied = 2 * widths.query if grouped and gets_document_masks(spec, kernels) else 0
        return micro_batch * sequence_length * ((widths.query + copied) * dtype_bytes + heads * STATISTIC_BYTES)
    batched = (micro_batch > 1) * 1
    if kernel is AttentionKernel.math:
        value = 1 if grouped or dtype_bytes < FP32_BYTES else batched
        inputs = widths.query * (2 + value) * FP32_BYTES
    else:
        in_order = rotary_fraction(spec.hf_config, spec.facts) is not None and not spec.facts.learned_positions
        query = 0 if in_order else batched
        key, value = (1, 1) if grouped else (query, batched)
        inputs = widths.query * (query + key + value) * dtype_bytes
    scores = _score_bytes(
        spec,
        kernel,
        sequence_length=sequence_length,
        dtype_bytes=dtype_bytes,
        tensor_parallel_size=tensor_parallel_size,
        accelerator=accelerator,
    )
    return micro_batch * sequence_length * (inputs + scores)


def score_gradient_bytes(spec: ModelSpec, *, dtype_bytes: int, accelerator: Accelerator, kernels: Kernels = OURS) -> int:
    """Bytes for each pair of tokens and head that the backward pass of unfused attention adds at its peak.

    The gradient of the probabilities and that of the scores, both in the softmax's dtype; the cast-back probabilities are
    free by then.
    """
    match attention_kernel(spec, dtype_bytes=dtype_bytes, accelerator=accelerator, kernels=kernels):
        case AttentionKernel.fused:
            return 0
        case AttentionKernel.math:
            return 2 * FP32_BYTES
        case AttentionKernel.eager:
            cast = spec.facts.fp32_softmax and dtype_bytes < FP32_BYTES
            return 2 * FP32_BYTES - dtype_bytes if cast else 2 * dtype_bytes


def _score_bytes(
    spec: ModelSpec,
    kernel: AttentionKernel,
    *,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size,
    accelerator: Accelerator,
) -> Size:
    """Bytes a token of all heads' scores: the softmax, its cast, the cap, and with dropout the mask and what is left."""
    pairs = ceil_divide(spec.num_attention_heads, tensor_parallel_size) * sequence_length
    if kernel is AttentionKernel.math:
        work_bytes, softmax = FP32_BYTES, FP32_BYTES
    else:
        cast = spec.facts.fp32_softmax and dtype_bytes < FP32_BYTES
        work_bytes, softmax = dtype_bytes, FP32_BYTES if cast else dtype_bytes
        if cast and spec.dropout == 0:
            softmax += dtype_bytes
        if score_softcap(spec) is not None:
            softmax += dtype_bytes
    if spec.dropout > 0:
        softmax += work_bytes + mask_element_bytes(work_bytes, accelerator)
    return pairs * softmax


def _fused_matrix_elements(
    spec: ModelSpec,
    kernels: Kernels,
    kernel: AttentionKernel,
    widths: LayerWidths,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
) -> Size:
    """Elements a token that a fused query-key-value matrix keeps beside query, key and value.

    The value is a view of the whole matrix output. Where query and key were made anew (rotated, or scaled by the math
    kernel), it keeps their old selves alive; a batched product copies it, unless the batch has one row or the format
    changes, and so does the repetition of key heads. Rotating a part of each head leaves query and key in an order that the
    fused kernels' output has to be copied from.
    """
    if not spec.facts.fused_query_key_value:
        return 0
    grouped = spec.num_key_value_heads < spec.num_attention_heads
    old_selves = widths.query + widths.key_value
    rotary = not spec.facts.learned_positions
    match kernel:
        case AttentionKernel.fused:
            repeated = _is_masked(spec, kernels, sequence_length) if grouped else 0
            return ((1 - repeated) * old_selves + widths.query) * rotary
        case AttentionKernel.eager:
            return old_selves * (micro_batch == 1) if rotary and not grouped else 0
        case AttentionKernel.math:
            return old_selves * (micro_batch == 1) if dtype_bytes == FP32_BYTES and not grouped else 0


def _is_masked(spec: ModelSpec, kernels: Kernels, sequence_length: Size) -> Size:
    """1 where a fused kernel gets an explicit mask: of documents, or of a window that the sequence reaches."""
    if gets_document_masks(spec, kernels):
        return 1
    window = sliding_window(spec)
    if window is None or spec.attention_implementation is not AttentionImplementation.sdpa:
        return 0
    return (sequence_length >= window.tokens) * 1
