"""Parameters, saved activations and FLOPs of one layer, of the embedding and of the head, on one tensor-parallel rank.

The activation counts follow Hugging Face's modules operation by operation: what autograd keeps, each storage once, parameters
left out. They therefore exceed the usual figures for fused kernels: an RMSNorm in bf16 keeps an fp32 copy of its input, a gated
MLP four tensors, GPT-2's ``gelu_new`` five.

Micro-batch, sequence length and tensor-parallel size may be ints or integer numpy arrays that broadcast; so are the results.
All tensor parallelism is Megatron's without sequence parallelism (Shoeybi et al., 2019): what lies between two blocks is whole
on every rank, what lies inside is split.
"""

from __future__ import annotations

from orchestrator.config.schema import Accelerator, RecomputePolicy
from orchestrator.planning.attention import (
    FP32_BYTES,
    STATISTIC_BYTES,
    AttentionKernel,
    attention_kernel,
    mask_element_bytes,
    saved_attention_bytes,
    score_gradient_bytes,
    sliding_window,
)
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.families import ACTIVATIONS, NormKind
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide, layer_matrix_parameters, layer_vector_parameters

TOKEN_ID_BYTES = 8
"""Token ids and positions are 64-bit integers."""


def layer_parameters(spec: ModelSpec, tensor_parallel_size: Size = 1) -> Size:
    """Parameters of one layer on one tensor-parallel rank."""
    widths = spec.layer_widths(tensor_parallel_size)
    matrices = layer_matrix_parameters(spec.facts, spec.hidden_size, widths)
    return matrices + layer_vector_parameters(spec.facts, spec.hf_config, spec.hidden_size, spec.head_dim, widths)


def embedding_parameters(spec: ModelSpec, tensor_parallel_size: Size = 1) -> Size:
    """Parameters of the embeddings on one rank: the vocabulary is padded to a multiple of the ranks, positions are whole."""
    positions = spec.max_position_embeddings if spec.facts.learned_positions else 0
    return (ceil_divide(spec.vocab_size, tensor_parallel_size) + positions) * spec.hidden_size


def head_parameters(spec: ModelSpec, tensor_parallel_size: Size = 1) -> Size:
    """Parameters of the output head on one rank; none when it is the token embedding."""
    return 0 if spec.tie_word_embeddings else ceil_divide(spec.vocab_size, tensor_parallel_size) * spec.hidden_size


def final_norm_parameters(spec: ModelSpec) -> int:
    """Parameters of the norm before the head, whole on every rank."""
    return spec.final_norm_parameters


def layer_activation_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    recompute: RecomputePolicy,
    accelerator: Accelerator = Accelerator.cuda,
) -> Size:
    """Bytes that one layer keeps for the backward pass of one micro-batch; with full recomputation its input alone."""
    tokens = micro_batch * sequence_length
    if recompute is RecomputePolicy.full:
        return tokens * spec.hidden_size * dtype_bytes
    return (
        _saved_norm_bytes(spec, tokens=tokens, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size)
        + saved_attention_bytes(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype_bytes=dtype_bytes,
            tensor_parallel_size=tensor_parallel_size,
            accelerator=accelerator,
        )
        + _saved_mlp_bytes(spec, tokens=tokens, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size)
        + 2 * _residual_dropout_bytes(spec, tokens=tokens, dtype_bytes=dtype_bytes, accelerator=accelerator)
    )


def layer_working_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    recompute: RecomputePolicy,
    accelerator: Accelerator = Accelerator.cuda,
) -> Size:
    """Bytes beyond ``layer_activation_bytes`` of all layers while the backward pass is in one layer, at its peak.

    The gradients of activations that are alive at once: in the MLP those of its inner tensors and two of the residual
    stream; in unfused attention those of the scores and three of the residual stream, when the saved tensors of the MLP,
    of its norm and of the output matrix have gone. These counts were measured on Hugging Face's modules. With full
    recomputation the layer's own saved tensors come on top. Gradients of parameters are not included.
    """
    tokens = micro_batch * sequence_length
    widths = spec.layer_widths(tensor_parallel_size)
    residual = tokens * spec.hidden_size * dtype_bytes
    in_mlp = tokens * widths.intermediate * dtype_bytes * _mlp_gradients(spec) + 2 * residual
    freed = _saved_mlp_bytes(
        spec, tokens=tokens, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size
    ) + tokens * (_mlp_norm_bytes(spec, dtype_bytes) + widths.query * dtype_bytes)
    heads = ceil_divide(spec.num_attention_heads, tensor_parallel_size)
    scores = score_gradient_bytes(spec, dtype_bytes=dtype_bytes, accelerator=accelerator)
    in_attention = tokens * heads * sequence_length * scores + 3 * residual - freed
    working = larger(in_mlp, in_attention)
    if recompute is RecomputePolicy.none:
        return working
    saved = layer_activation_bytes(
        spec,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        dtype_bytes=dtype_bytes,
        tensor_parallel_size=tensor_parallel_size,
        recompute=RecomputePolicy.none,
        accelerator=accelerator,
    )
    return saved + working - (residual if _keeps_input(spec, dtype_bytes) else 0)


def embedding_activation_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    recompute: RecomputePolicy,
    accelerator: Accelerator = Accelerator.cuda,
) -> Size:
    """Bytes kept once a micro-batch before the first layer: token ids, dropout mask, rotary tables and attention mask.

    Recomputation keeps the explicit attention mask, which ``eager`` and a sliding window need; else it is gone after the
    forward pass.
    """
    tokens = micro_batch * sequence_length
    dropout = _residual_dropout_bytes(spec, tokens=tokens, dtype_bytes=dtype_bytes, accelerator=accelerator)
    if spec.facts.learned_positions:
        positions = sequence_length * TOKEN_ID_BYTES
    else:
        positions = 2 * sequence_length * _rotary_width(spec) * dtype_bytes
    mask: Size = 0
    if recompute is RecomputePolicy.full:
        mask = tokens * sequence_length * _shared_mask_bytes(spec, sequence_length, dtype_bytes, accelerator)
    return tokens * TOKEN_ID_BYTES + positions + dropout + mask


def final_norm_activation_bytes(spec: ModelSpec, *, micro_batch: Size, sequence_length: Size, dtype_bytes: int) -> Size:
    """Bytes that the norm before the head keeps, its output (the head's input) included."""
    tokens = micro_batch * sequence_length
    return tokens * (_norm_input_bytes(spec, dtype_bytes) + _norm_output_bytes(spec, dtype_bytes))


def logits_bytes(
    spec: ModelSpec, *, micro_batch: Size, sequence_length: Size, dtype_bytes: int, tensor_parallel_size: Size = 1
) -> Size:
    """Peak bytes of logits and loss: cross entropy over all tokens at once, unfused, in fp32.

    Forward holds the logits, their fp32 copy and the log-probabilities; backward the log-probabilities, their gradient and
    the gradient of the logits, all fp32, when the logits themselves have gone. The vocabulary is split over the ranks.
    """
    copy = FP32_BYTES if dtype_bytes < FP32_BYTES else 0
    per_logit = max(dtype_bytes + copy + FP32_BYTES, 3 * FP32_BYTES)
    return micro_batch * sequence_length * ceil_divide(spec.vocab_size, tensor_parallel_size) * per_logit


def model_flops_per_token(spec: ModelSpec, sequence_length: Size) -> Size:
    """Floating point operations that training on one token takes, forward and backward, recomputation not counted.

    6 for each element of a matrix (head included, embedding not) and 12 x query width x sequence length for the scores of
    each layer, the causal half not taken off: the convention of PaLM (Chowdhery et al., 2022, appendix B).
    """
    matrices = spec.num_hidden_layers * layer_matrix_parameters(spec.facts, spec.hidden_size, spec.layer_widths())
    head = spec.vocab_size * spec.hidden_size
    window = sliding_window(spec)
    sliding_layers = 0 if window is None else window.layers
    context = (spec.num_hidden_layers - sliding_layers) * sequence_length
    if window is not None:
        context = context + sliding_layers * smaller(sequence_length, window.tokens)
    return 6 * (matrices + head) + 12 * spec.num_attention_heads * spec.head_dim * context


def _saved_norm_bytes(spec: ModelSpec, *, tokens: Size, dtype_bytes: int, tensor_parallel_size: Size) -> Size:
    """Inputs and outputs of a layer's norms; in a parallel block both norms share one input."""
    inputs = 1 if spec.facts.parallel_residual.of(spec.hf_config) else spec.facts.norms_per_layer
    shared = spec.facts.norms_per_layer - inputs
    per_token = (
        inputs * _norm_input_bytes(spec, dtype_bytes)
        + shared * 2 * STATISTIC_BYTES
        + spec.facts.norms_per_layer * _norm_output_bytes(spec, dtype_bytes)
    )
    if not spec.facts.query_key_norm:
        return tokens * per_token
    widths = spec.layer_widths(tensor_parallel_size)
    heads = ceil_divide(spec.num_attention_heads, tensor_parallel_size) + ceil_divide(
        spec.num_key_value_heads, tensor_parallel_size
    )
    query_key = (widths.query + widths.key_value) * (FP32_BYTES + dtype_bytes) + heads * STATISTIC_BYTES
    return tokens * (per_token + query_key)


def _norm_input_bytes(spec: ModelSpec, dtype_bytes: int) -> int:
    """Bytes a token that a norm keeps of its input, with its statistics. Hugging Face's RMSNorm works on an fp32 copy."""
    if spec.facts.norm is NormKind.layer_norm:
        return spec.hidden_size * dtype_bytes + 2 * STATISTIC_BYTES
    return spec.hidden_size * FP32_BYTES + STATISTIC_BYTES


def _norm_output_bytes(spec: ModelSpec, dtype_bytes: int) -> int:
    """Bytes a token kept after a norm: its output for the matrix it feeds, and RMSNorm's value before the weight."""
    return spec.hidden_size * dtype_bytes * (1 if spec.facts.norm is NormKind.layer_norm else 2)


def _mlp_norm_bytes(spec: ModelSpec, dtype_bytes: int) -> int:
    """Bytes a token that the MLP's norm keeps for itself; in a parallel block its input is the attention norm's too."""
    shared = spec.facts.parallel_residual.of(spec.hf_config)
    return _norm_output_bytes(spec, dtype_bytes) + (0 if shared else _norm_input_bytes(spec, dtype_bytes))


def _keeps_input(spec: ModelSpec, dtype_bytes: int) -> bool:
    """Whether a norm keeps the residual stream itself, not a copy in another format."""
    return spec.facts.norm is NormKind.layer_norm or dtype_bytes == FP32_BYTES


def _activation_tensors(spec: ModelSpec) -> int:
    return ACTIVATIONS[spec.hf_config.get(spec.facts.activation_key, spec.facts.activation)]


def _saved_mlp_bytes(spec: ModelSpec, *, tokens: Size, dtype_bytes: int, tensor_parallel_size: Size) -> Size:
    """Tensors inside the MLP: what the activation keeps and its result; a gate also keeps the up projection and the product."""
    tensors = _activation_tensors(spec) + (3 if spec.facts.gated_mlp else 1)
    return tokens * spec.layer_widths(tensor_parallel_size).intermediate * tensors * dtype_bytes


def _mlp_gradients(spec: ModelSpec) -> int:
    """Gradients inside the MLP that are alive at once beyond the saved tensors already freed."""
    return 1 if not spec.facts.gated_mlp and _activation_tensors(spec) == 1 else 2


def _residual_dropout_bytes(spec: ModelSpec, *, tokens: Size, dtype_bytes: int, accelerator: Accelerator) -> Size:
    """Mask of one dropout over the residual stream."""
    if spec.dropout == 0 or not spec.facts.residual_dropout:
        return 0
    return tokens * spec.hidden_size * mask_element_bytes(dtype_bytes, accelerator)


def _rotary_width(spec: ModelSpec) -> int:
    """Elements of a head that rotate."""
    if spec.facts.rotary_fraction is None:
        return spec.head_dim
    parameters = spec.hf_config.get("rope_parameters") or {}
    fraction = parameters.get("partial_rotary_factor", spec.hf_config.get("rotary_pct", spec.facts.rotary_fraction))
    return int(spec.head_dim * fraction)


def _shared_mask_bytes(spec: ModelSpec, sequence_length: Size, dtype_bytes: int, accelerator: Accelerator) -> Size:
    """Bytes for each pair of tokens of the mask that all layers share: numbers for eager, true or false for sdpa."""
    if attention_kernel(spec, dtype_bytes=dtype_bytes, accelerator=accelerator) is AttentionKernel.eager:
        return dtype_bytes
    window = sliding_window(spec)
    return 0 if window is None else (sequence_length >= window.tokens) * 1
