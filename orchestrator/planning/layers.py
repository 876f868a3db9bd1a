"""Parameters, saved activations and FLOPs of one layer, of the embedding and of the head, on one tensor-parallel rank.

The activation counts follow Hugging Face's modules operation by operation: what autograd keeps, each storage once, parameters
left out. They therefore exceed the usual figures for fused kernels: an RMSNorm in bf16 keeps an fp32 copy of its input, a gated
MLP four tensors, GPT-2's ``gelu_new`` five.

Micro-batch, sequence length and tensor-parallel size may be ints or integer numpy arrays that broadcast; so are the results.
Tensor parallelism is Megatron's (Shoeybi et al., 2019): what lies between two blocks is whole on every rank, what lies inside
is split. With sequence parallelism (Korthikanti et al., 2022) each rank holds a shard of the sequence between the blocks; what
a block reads is gathered, and kept whole.
"""

from __future__ import annotations

from orchestrator.config.enums import Accelerator, AttentionImplementation, RecomputePolicy
from orchestrator.planning.attention import (
    STATISTIC_BYTES,
    attention_boundary_bytes,
    attention_kernel,
    gets_document_masks,
    mask_element_bytes,
    recomputed_attention_bytes,
    saved_attention_bytes,
    score_gradient_bytes,
    sliding_window,
)
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.families import ACTIVATIONS, NormKind, rotary_fraction
from orchestrator.planning.kernels import FP32_BYTES, OURS, AttentionKernel, CrossEntropyKernel, Kernels, NormKernel
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


def layer_activation_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    sequence_parallel: bool = False,
    recompute: RecomputePolicy,
    accelerator: Accelerator = Accelerator.cuda,
    kernels: Kernels = OURS,
) -> Size:
    """Bytes that one layer keeps for the backward pass of one micro-batch.

    With ``full`` recomputation the input of the layer alone; with ``every_k_layers`` the input of one group, whatever its
    length: the caller multiplies by the number of groups. ``selective`` keeps all but the tensors inside the attention
    function, whose inputs (query, key and value) and output stay.
    """
    if recompute in (RecomputePolicy.full, RecomputePolicy.every_k_layers):
        return kept_input_bytes(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype_bytes=dtype_bytes,
            tensor_parallel_size=tensor_parallel_size,
            sequence_parallel=sequence_parallel,
        )
    tokens = micro_batch * sequence_length
    shard = _residual_tokens(micro_batch, sequence_length, tensor_parallel_size, sequence_parallel)
    if recompute is RecomputePolicy.selective:
        attention = tokens * attention_boundary_bytes(spec, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size)
    else:
        attention = saved_attention_bytes(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype_bytes=dtype_bytes,
            tensor_parallel_size=tensor_parallel_size,
            accelerator=accelerator,
            kernels=kernels,
        )
    return (
        _saved_norm_bytes(spec, kernels, tokens, shard, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size)
        + attention
        + _saved_mlp_bytes(spec, kernels, tokens, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size)
        + 2 * _residual_dropout_bytes(spec, tokens=shard, dtype_bytes=dtype_bytes, accelerator=accelerator)
    )


def kept_input_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    sequence_parallel: bool = False,
    partition_activations: bool = False,
) -> Size:
    """Bytes of the one input that a recomputed layer, or group of layers, keeps of one micro-batch.

    It is a shard of the sequence with sequence parallelism, and a shard of the same size with ``partition_activations``.
    With ``cpu_checkpointing`` these are bytes of host memory instead of device memory.
    """
    shard = _residual_tokens(micro_batch, sequence_length, tensor_parallel_size, sequence_parallel)
    elements = shard * spec.hidden_size
    if partition_activations and not sequence_parallel:
        elements = ceil_divide(elements, tensor_parallel_size)
    return elements * dtype_bytes


def layer_working_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    sequence_parallel: bool = False,
    recompute: RecomputePolicy,
    recompute_interval: Size = 1,
    input_moved: bool = False,
    accelerator: Accelerator = Accelerator.cuda,
    kernels: Kernels = OURS,
) -> Size:
    """Bytes beyond ``layer_activation_bytes`` of all layers while the backward pass is in one layer, at its peak.

    The gradients of activations that are alive at once: in a norm after the MLP four fp32 tensors as wide as the residual
    stream; in the MLP those of its inner tensors, when the saved tensors of that norm have gone; in unfused attention those
    of the scores, when the saved tensors of the MLP, of the norms around it and of the output matrix have gone; in all three
    that of the residual stream, with sequence parallelism also whole. These counts were measured on the modules.

    With recomputation what is made again comes on top: the attention function's tensors (``selective``), those of the layer
    (``full``) or of ``recompute_interval`` layers (``every_k_layers``). ``input_moved``: the kept inputs are partitioned or
    in host memory, so that the one in use is on the device beside them. Gradients of parameters are not included.
    """
    tokens = micro_batch * sequence_length
    shard = _residual_tokens(micro_batch, sequence_length, tensor_parallel_size, sequence_parallel)
    widths = spec.layer_widths(tensor_parallel_size)
    whole, residual = (count * spec.hidden_size * dtype_bytes for count in (tokens, shard))
    gathered = whole if sequence_parallel else 0
    norm = shard * (_norm_input_bytes(spec, kernels, dtype_bytes) + _norm_value_bytes(spec, kernels, dtype_bytes))
    after_blocks = spec.facts.norms_per_layer // 2 - 1
    in_mlp = (
        tokens * widths.intermediate * dtype_bytes * _mlp_gradients(spec, kernels) + residual + gathered - after_blocks * norm
    )
    freed = (
        _saved_mlp_bytes(spec, kernels, tokens, dtype_bytes=dtype_bytes, tensor_parallel_size=tensor_parallel_size)
        + tokens * widths.query * dtype_bytes
        + whole
        + (0 if spec.facts.parallel_residual.of(spec.hf_config) else norm)
        + 2 * after_blocks * norm
    )
    heads = ceil_divide(spec.num_attention_heads, tensor_parallel_size)
    scores = score_gradient_bytes(spec, dtype_bytes=dtype_bytes, accelerator=accelerator, kernels=kernels)
    in_attention = tokens * heads * sequence_length * scores + residual + gathered - freed
    in_norm = after_blocks * (_norm_gradient_bytes(spec, kernels, shard) + residual)
    if recompute is RecomputePolicy.selective:
        in_attention = in_attention + recomputed_attention_bytes(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype_bytes=dtype_bytes,
            tensor_parallel_size=tensor_parallel_size,
            accelerator=accelerator,
            kernels=kernels,
        )
    working = larger(in_mlp, in_attention, in_norm)
    if recompute in (RecomputePolicy.none, RecomputePolicy.selective):
        return working
    saved = layer_activation_bytes(
        spec,
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        dtype_bytes=dtype_bytes,
        tensor_parallel_size=tensor_parallel_size,
        sequence_parallel=sequence_parallel,
        recompute=RecomputePolicy.none,
        accelerator=accelerator,
        kernels=kernels,
    )
    layers = recompute_interval if recompute is RecomputePolicy.every_k_layers else 1
    return layers * saved + working + residual * (input_moved - _keeps_input(spec, kernels, dtype_bytes))


def embedding_activation_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    sequence_parallel: bool = False,
    recompute: RecomputePolicy,
    accelerator: Accelerator = Accelerator.cuda,
    kernels: Kernels = OURS,
) -> Size:
    """Bytes kept once a micro-batch before the first layer: token ids, dropout mask, rotary tables and attention mask.

    Tables and masks are the same for every micro-batch, and each process makes them once. Where attention starts anew at each
    document they are the micro-batch's own, and there are positions; its mask is counted here if autograd keeps it.
    """
    tokens = micro_batch * sequence_length
    dropout: Size = 0
    if spec.facts.embedding_dropout:
        shard = _residual_tokens(micro_batch, sequence_length, tensor_parallel_size, sequence_parallel)
        dropout = _residual_dropout_bytes(spec, tokens=shard, dtype_bytes=dtype_bytes, accelerator=accelerator)
    if spec.facts.learned_positions:
        positions = sequence_length * TOKEN_ID_BYTES
    else:
        positions = 2 * sequence_length * _rotary_width(spec) * dtype_bytes
    if not kernels.masks_documents:
        mask = sequence_length * sequence_length * _shared_mask_bytes(spec, kernels, sequence_length, dtype_bytes, accelerator)
        return tokens * TOKEN_ID_BYTES + positions + dropout + mask
    own_positions = tokens * TOKEN_ID_BYTES
    if not spec.facts.learned_positions:
        positions = positions * (micro_batch + 1)
    kept = keeps_document_masks(spec, dtype_bytes=dtype_bytes, recompute=recompute, accelerator=accelerator, kernels=kernels)
    masks = document_mask_bytes(
        spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype_bytes=dtype_bytes, kernels=kernels
    )
    return tokens * TOKEN_ID_BYTES + own_positions + positions + dropout + masks * kept


def document_mask_bytes(
    spec: ModelSpec, *, micro_batch: Size, sequence_length: Size, dtype_bytes: int, kernels: Kernels
) -> Size:
    """Bytes of the masks that keep a micro-batch's documents apart, which all layers share: one for each window.

    Numbers in the model's format for each pair of tokens; none for flash attention.
    """
    pairs = micro_batch * sequence_length * sequence_length
    if not gets_document_masks(spec, kernels):
        return 0 * pairs
    window = sliding_window(spec)
    reached = 0 if window is None else (sequence_length >= window.tokens) * (window.layers < spec.num_hidden_layers)
    return pairs * dtype_bytes * (1 + reached)


def keeps_document_masks(
    spec: ModelSpec, *, dtype_bytes: int, recompute: RecomputePolicy, accelerator: Accelerator, kernels: Kernels
) -> bool:
    """Whether each micro-batch's masks stay until its backward pass. Those of the latest stay anyway.

    A fused kernel keeps its mask; added to scores it is not needed again. What is recomputed needs it again: the attention
    alone is given it, whole layers make it anew.
    """
    if recompute is RecomputePolicy.none:
        kernel = attention_kernel(spec, dtype_bytes=dtype_bytes, accelerator=accelerator, kernels=kernels)
        return kernel is AttentionKernel.fused
    return recompute is RecomputePolicy.selective


def final_norm_activation_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    sequence_parallel: bool = False,
    kernels: Kernels = OURS,
) -> Size:
    """Bytes that the norm before the head keeps, its output (the head's input, whole on every rank) included."""
    tokens = micro_batch * sequence_length
    shard = _residual_tokens(micro_batch, sequence_length, tensor_parallel_size, sequence_parallel)
    norm = shard * (_norm_input_bytes(spec, kernels, dtype_bytes) + _norm_value_bytes(spec, kernels, dtype_bytes))
    output = shard if kernels.gathers_inputs_again else tokens
    return norm + _norm_weight_bytes(spec) + output * spec.hidden_size * dtype_bytes


LOSS_CHUNK_TOKENS = 1024
"""Tokens whose cross entropy is computed at once."""


def logits_bytes(
    spec: ModelSpec,
    *,
    micro_batch: Size,
    sequence_length: Size,
    dtype_bytes: int,
    tensor_parallel_size: Size = 1,
    sequence_parallel: bool = False,
    kernels: Kernels = OURS,
) -> Size:
    """Peak bytes beside the saved activations, final norm included, from the logits to the backward pass of that norm.

    The logits are there once, in the compute dtype: the cross entropy writes their gradient over them, taking
    ``LOSS_CHUNK_TOKENS`` tokens at a time in one fp32 tensor, two where the logits are capped. Then the gradient of the
    head's input is alive beside them. An RMSNorm's backward pass has four fp32 tensors of the residual stream beside that
    gradient, which takes the place of the head's input, when the logits have gone. The vocabulary is split over the ranks.
    """
    tokens = micro_batch * sequence_length
    columns = ceil_divide(spec.vocab_size, tensor_parallel_size)
    gradient = tokens * spec.hidden_size * dtype_bytes
    if kernels.cross_entropy is not CrossEntropyKernel.in_place:
        return tokens * columns * kernels.cross_entropy.peak_bytes(dtype_bytes) + gradient
    facts = spec.facts
    capped = facts.logits_softcap_key is not None and spec.hf_config.get(facts.logits_softcap_key, facts.logits_softcap)
    chunk = smaller(tokens, LOSS_CHUNK_TOKENS) * columns * FP32_BYTES * (2 if capped else 1)
    shard = _residual_tokens(micro_batch, sequence_length, tensor_parallel_size, sequence_parallel)
    in_norm = _norm_gradient_bytes(spec, kernels, shard)
    return larger(tokens * columns * dtype_bytes + larger(chunk, gradient), in_norm)


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


def _residual_tokens(micro_batch: Size, sequence_length: Size, tensor_parallel_size: Size, sequence_parallel: bool) -> Size:
    """Tokens of the residual stream that one rank holds between the blocks: all, or a shard of each sequence."""
    return micro_batch * (ceil_divide(sequence_length, tensor_parallel_size) if sequence_parallel else sequence_length)


def _saved_norm_bytes(
    spec: ModelSpec, kernels: Kernels, tokens: Size, shard: Size, *, dtype_bytes: int, tensor_parallel_size: Size
) -> Size:
    """What a layer's norms keep of ``shard`` tokens, and the two outputs that feed attention and MLP, of all ``tokens``.

    In a parallel block both norms share one input.
    """
    norms = spec.facts.norms_per_layer
    inputs = 1 if spec.facts.parallel_residual.of(spec.hf_config) else norms
    per_token = (
        inputs * _norm_input_bytes(spec, kernels, dtype_bytes)
        + (norms - inputs) * 2 * STATISTIC_BYTES
        + norms * _norm_value_bytes(spec, kernels, dtype_bytes)
    )
    outputs = shard if kernels.gathers_inputs_again else tokens
    saved = shard * per_token + norms * _norm_weight_bytes(spec) + 2 * outputs * spec.hidden_size * dtype_bytes
    if not spec.facts.query_key_norm:
        return saved
    widths = spec.layer_widths(tensor_parallel_size)
    heads = ceil_divide(spec.num_attention_heads, tensor_parallel_size) + ceil_divide(
        spec.num_key_value_heads, tensor_parallel_size
    )
    inputs_and_values = dtype_bytes if kernels.norm is NormKernel.fused else FP32_BYTES + dtype_bytes
    query_key = (widths.query + widths.key_value) * inputs_and_values + heads * STATISTIC_BYTES
    return saved + tokens * query_key


def _norm_is_fused(spec: ModelSpec, kernels: Kernels) -> bool:
    """Whether a norm is one operation: torch's LayerNorm is, Hugging Face's RMSNorm is not."""
    if kernels.norm is not None:
        return kernels.norm is NormKernel.fused
    return spec.facts.norm is NormKind.layer_norm


def _norm_input_bytes(spec: ModelSpec, kernels: Kernels, dtype_bytes: int) -> int:
    """Bytes a token that a norm keeps of its input, with its statistics. Hugging Face's RMSNorm works on an fp32 copy."""
    if _norm_is_fused(spec, kernels):
        return spec.hidden_size * dtype_bytes + 2 * STATISTIC_BYTES
    return spec.hidden_size * FP32_BYTES + STATISTIC_BYTES


def _norm_value_bytes(spec: ModelSpec, kernels: Kernels, dtype_bytes: int) -> int:
    """Bytes a token of RMSNorm's value before the weight: fp32 where the weight is an offset, else cast back."""
    if _norm_is_fused(spec, kernels):
        return 0
    return spec.hidden_size * (FP32_BYTES if spec.facts.norm_weight_is_offset else dtype_bytes)


def _norm_weight_bytes(spec: ModelSpec) -> int:
    """Bytes of the fp32 sum of one and the weight that a norm with an offset weight keeps, whatever the tokens."""
    return spec.hidden_size * FP32_BYTES if spec.facts.norm_weight_is_offset else 0


def _norm_gradient_bytes(spec: ModelSpec, kernels: Kernels, shard: Size) -> Size:
    """Gradients inside a norm that are alive at once: Hugging Face writes RMSNorm out, in fp32; torch's LayerNorm is one."""
    return 0 if _norm_is_fused(spec, kernels) else 4 * shard * spec.hidden_size * FP32_BYTES


def _keeps_input(spec: ModelSpec, kernels: Kernels, dtype_bytes: int) -> bool:
    """Whether a norm keeps the residual stream itself, not a copy in another format."""
    return _norm_is_fused(spec, kernels) or dtype_bytes == FP32_BYTES


def _activation_tensors(spec: ModelSpec, kernels: Kernels) -> int:
    if kernels.activation_tensors is not None:
        return kernels.activation_tensors
    return ACTIVATIONS[spec.hf_config.get(spec.facts.activation_key, spec.facts.activation)]


def _saved_mlp_bytes(spec: ModelSpec, kernels: Kernels, tokens: Size, *, dtype_bytes: int, tensor_parallel_size: Size) -> Size:
    """Tensors inside the MLP: what the activation keeps and its result; a gate also keeps the up projection and the product."""
    activation = _activation_tensors(spec, kernels)
    if spec.facts.fused_gate_up:
        activation = max(activation, 1)  # the up projection keeps the gate's half of the matrix output alive
    tensors = activation + (3 if spec.facts.gated_mlp else 1)
    if spec.facts.gated_mlp and kernels.copies_split_outputs:
        tensors += 2
    return tokens * spec.layer_widths(tensor_parallel_size).intermediate * tensors * dtype_bytes


def _mlp_gradients(spec: ModelSpec, kernels: Kernels) -> int:
    """Gradients inside the MLP that are alive at once beyond the saved tensors already freed."""
    if spec.facts.gated_mlp:
        return 1 if kernels.activation_tensors == 0 else 2  # a fused SwiGLU writes gradients over its inputs
    return 1 if _activation_tensors(spec, kernels) == 1 else 2


def _residual_dropout_bytes(spec: ModelSpec, *, tokens: Size, dtype_bytes: int, accelerator: Accelerator) -> Size:
    """Mask of one dropout over the residual stream."""
    if spec.dropout == 0 or not spec.facts.residual_dropout:
        return 0
    return tokens * spec.hidden_size * mask_element_bytes(dtype_bytes, accelerator)


def _rotary_width(spec: ModelSpec) -> int:
    """Elements of a head that rotate."""
    fraction = rotary_fraction(spec.hf_config, spec.facts)
    return spec.head_dim if fraction is None else 2 * ceil_divide(int(spec.head_dim * fraction), 2)


def _shared_mask_bytes(
    spec: ModelSpec, kernels: Kernels, sequence_length: Size, dtype_bytes: int, accelerator: Accelerator
) -> Size:
    """Bytes for each pair of tokens of the masks that all layers share: numbers for eager, true or false for sdpa.

    Layers whose window the sequence reaches have another than those that see all of it.
    """
    window = sliding_window(spec)
    reached = 0 if window is None else (sequence_length >= window.tokens) * 1
    kernel = attention_kernel(spec, dtype_bytes=dtype_bytes, accelerator=accelerator, kernels=kernels)
    if kernel is AttentionKernel.eager:
        both = window is not None and window.layers < spec.num_hidden_layers
        return dtype_bytes * (1 + reached * both)
    return reached if spec.attention_implementation is AttentionImplementation.sdpa else 0
