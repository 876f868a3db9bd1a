"""Rules about attention that starts anew at each document."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import Accelerator, Precision
from orchestrator.findings import Finding, Severity, info
from orchestrator.planning.kernels import Kernels
from orchestrator.planning.layers import document_mask_bytes
from orchestrator.planning.rules.registry import Fact, RuleContext, rule
from orchestrator.units import DTYPE_BYTES, format_bytes


@rule("document-masks", "documents are kept apart without masks", Severity.info, Fact.model, Fact.cluster, Fact.layout)
def document_masks(context: RuleContext) -> Iterator[Finding]:
    """Flash attention is told where documents begin; the other kernels get a mask and compute every pair of tokens."""
    config = context.config
    could_do_without = context.cluster.accelerator is Accelerator.cuda and config.precision.dtype is not Precision.fp32
    if not config.data.reset_at_documents or not could_do_without:
        return
    masks = document_mask_bytes(
        context.model,
        micro_batch=context.layout.train_micro_batch_size_per_gpu,
        sequence_length=config.data.sequence_length,
        dtype_bytes=DTYPE_BYTES[config.precision.dtype],
        kernels=Kernels(masks_documents=True),
    )
    if masks:
        kernel, size = config.model.attention_implementation.value, format_bytes(int(masks))
        yield info(
            "document-masks",
            "model.attention_implementation",
            f"{kernel} keeps the documents of a micro-batch apart by a mask of {size}, and computes every pair of tokens",
            "set model.attention_implementation=flash_attention_2, which needs no mask (package flash-attn)",
        )
