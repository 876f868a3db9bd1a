"""How a model's operations are computed, as far as memory notices: one name and one default for each choice.

The defaults are what our own modules run. Other systems differ in these choices and in nothing else, so that the same counts
serve them: Megatron-LM with Transformer Engine fuses norms and gathers sequence-parallel inputs again, its ``local``
implementation has unfused attention, Liger never makes the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FP32_BYTES = 4


class AttentionKernel(StrEnum):
    """How attention is computed."""

    eager = "eager"
    """Softmax and products apart, in the model's format: a score for every pair of tokens."""
    math = "math"
    """torch's unfused ``scaled_dot_product_attention``, in fp32."""
    fused = "fused"
    """Flash or memory-efficient attention: no scores."""


class NormKernel(StrEnum):
    """How a norm over the residual stream is computed."""

    written_out = "written_out"
    """Operation by operation, on an fp32 copy of the input: Hugging Face's RMSNorm."""
    fused = "fused"
    """One operation that keeps its input and two statistics: torch's LayerNorm, Apex, Transformer Engine, Liger."""


class CrossEntropyKernel(StrEnum):
    """How the loss is computed from the logits."""

    in_place = "in_place"
    """Ours: the gradient is written over the logits, a chunk of tokens at a time in fp32."""
    half_precision = "half_precision"
    """torch's in the format of the logits: they, their log-softmax and its gradient."""
    one_copy = "one_copy"
    """Megatron-LM's ``VocabParallelCrossEntropy``: an fp32 copy that becomes softmax and gradient."""
    one_copy_kept = "one_copy_kept"
    """The same with the logits still alive when their gradient is cast back (Galvatron)."""
    unfused = "unfused"
    """torch's on an fp32 copy (Hugging Face's loss, Megatron-LM's jit-fused one): copy, log-softmax and gradient, all fp32."""
    fused_linear = "fused_linear"
    """Head and loss in chunks: no logits (Liger, torchtune's chunked loss)."""

    def peak_bytes(self, dtype_bytes: int) -> int:
        """Bytes for each logit at the peak; ``in_place`` without its chunk."""
        match self:
            case CrossEntropyKernel.in_place:
                return dtype_bytes
            case CrossEntropyKernel.half_precision:
                return 3 * dtype_bytes
            case CrossEntropyKernel.one_copy:
                return dtype_bytes + FP32_BYTES
            case CrossEntropyKernel.one_copy_kept:
                return 2 * dtype_bytes + FP32_BYTES
            case CrossEntropyKernel.unfused:
                return dtype_bytes + 3 * FP32_BYTES
            case CrossEntropyKernel.fused_linear:
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The choices. ``None`` = what the Hugging Face modules of the model's family do."""

    attention: AttentionKernel | None = None
    norm: NormKernel | None = None
    activation_tensors: int | None = None
    """Tensors as wide as the MLP that its activation keeps beside its result; 0 for a fused SwiGLU, which makes them again."""
    gathers_inputs_again: bool = False
    """With sequence parallelism the input of a block's first matrix is gathered a second time for the backward pass (Megatron)
    instead of being kept whole (ours)."""
    copies_split_outputs: bool = False
    """The outputs of fused query-key-value and gate-up matrices stay alive beside contiguous copies of their parts."""
    batch_first_attention: bool = False
    """Attention keeps rotated query and key a second time, in (batch, sequence) order, where a batch has several rows."""
    cross_entropy: CrossEntropyKernel = CrossEntropyKernel.in_place
    masks_documents: bool = False
    """Attention starts anew at each document: eager and sdpa attention get a mask of their own for each micro-batch, numbers
    (micro-batch, sequence, sequence) in the model's format. Flash attention is told where documents begin."""


OURS = Kernels()
"""Our modules."""
