"""Rules about tensor parallelism: what must divide, and where its ranks should be.

What must divide is also checked on the options themselves when no model can be made of them, so that all is reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from orchestrator.findings import Finding, Severity, error, info, warning
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_SIZE = "parallelism.tensor_parallel_size"


@rule("tensor-attention-heads", "query heads divide over the tensor-parallel ranks", Severity.error, concerns_memory=True)
def attention_heads(context: RuleContext) -> Iterator[Finding]:
    """Megatron gives each rank whole query heads."""
    yield from _divides(context, "tensor-attention-heads", "num_attention_heads", "query heads")


@rule(
    "tensor-key-value-heads",
    "key heads divide over the ranks, or each is copied to several",
    Severity.error,
    concerns_memory=True,
)
def key_value_heads(context: RuleContext) -> Iterator[Finding]:
    """Ranks that outnumber the key and value heads share them, each a copy."""
    heads, tp = _size(context, "num_key_value_heads"), _tensor_parallel_size(context)
    if heads is not None and tp is not None and heads < tp and tp % heads == 0:
        yield info(
            "tensor-key-value-heads",
            "model.num_key_value_heads",
            f"{heads} key and value heads over tensor_parallel_size={tp}: each is copied to {tp // heads} ranks",
            f"nothing, or {_SIZE}={heads} to keep one copy",
        )
    else:
        yield from _divides(context, "tensor-key-value-heads", "num_key_value_heads", "key and value heads")


@rule("tensor-intermediate-size", "intermediate_size divides over the ranks", Severity.error, concerns_memory=True)
def intermediate_size(context: RuleContext) -> Iterator[Finding]:
    """The MLP's first matrix is cut along it."""
    yield from _divides(context, "tensor-intermediate-size", "intermediate_size", "columns of the MLP")


@rule("tensor-vocabulary", "the vocabulary divides over the ranks, or is padded", Severity.info)
def vocabulary(context: RuleContext) -> Iterator[Finding]:
    """Padding is harmless: the rows that fill it up are never looked at."""
    rows, tp = _size(context, "vocab_size"), _tensor_parallel_size(context)
    if rows is not None and tp is not None and rows % tp:
        padding = -rows % tp
        yield info(
            "tensor-vocabulary",
            "model.vocab_size",
            f"{rows} rows over tensor_parallel_size={tp} leave {rows % tp}: {padding} are added as padding",
            "nothing",
        )


@rule("sequence-parallel", "sequence parallelism has tensor-parallel ranks to shard over", Severity.error, concerns_memory=True)
def sequence_parallel(context: RuleContext) -> Iterator[Finding]:
    """Each of them holds an equal share of every sequence between the regions that are split."""
    tp, length = _tensor_parallel_size(context), context.config.data.sequence_length
    if not context.config.parallelism.sequence_parallel or tp is None:
        return
    if tp == 1:
        yield error(
            "sequence-parallel",
            "parallelism.sequence_parallel",
            f"true shards sequences over the tensor-parallel ranks, and {_SIZE}=1",
            f"set parallelism.sequence_parallel=false, or {_SIZE}=2 or more",
        )
    elif length % tp and length > 0:
        below = length - length % tp
        nearest = below if below >= 2 else tp
        yield error(
            "sequence-parallel",
            "data.sequence_length",
            f"{length} tokens do not divide over tensor_parallel_size={tp}, as parallelism.sequence_parallel=true needs",
            f"set data.sequence_length={nearest}, or parallelism.sequence_parallel=false",
        )


@rule("tensor-hosts", "a tensor-parallel group stays inside one host", Severity.warning, Fact.cluster, Fact.layout)
def tensor_hosts(context: RuleContext) -> Iterator[Finding]:
    """Its ranks exchange activations twice in every layer, which only the links inside a host are made for."""
    tp = context.layout.tensor_parallel_size
    slots = sorted({host.slots for host in context.cluster.hosts})
    if tp == 1 or len(context.cluster.hosts) == 1 or all(count % tp == 0 for count in slots):
        return
    inside = max(size for size in range(1, tp + 1) if all(count % size == 0 for count in slots) and tp % size == 0)
    yield warning(
        "tensor-hosts",
        _SIZE,
        f"{tp} ranks do not stay inside hosts of {', '.join(map(str, slots))} devices: every layer waits for the network",
        f"set {_SIZE}={inside} and more pipeline stages",
    )


def _divides(context: RuleContext, name: str, field: str, things: str) -> Iterator[Finding]:
    size, tp = _size(context, field), _tensor_parallel_size(context)
    if size is None or tp is None or size % tp == 0:
        return
    yield error(
        name,
        f"model.{field}",
        f"{size} {things} do not divide over tensor_parallel_size={tp}",
        f"set {_SIZE}={gcd(size, tp)}; {_legal_sizes(context, size)}",
    )


def _legal_sizes(context: RuleContext, size: int) -> str:
    """The sizes that divide ``size``, and those of them that stay inside a host."""
    legal = [number for number in range(1, min(size, 1024) + 1) if size % number == 0]
    listed = f"legal are {', '.join(map(str, legal[:12]))}{', ...' if len(legal) > 12 else ''}"
    if context.established_cluster is None:
        return listed
    inside = [number for number in legal if all(host.slots % number == 0 for host in context.established_cluster.hosts)]
    return f"{listed}; inside a host {', '.join(map(str, inside))}"


def _size(context: RuleContext, field: str) -> int | None:
    """A size of the model, or of the options when there is no model; ``None`` when it is not given or not a size."""
    source = context.config.model if context.established_model is None else context.established_model
    size: int | None = getattr(source, field)
    if size is None and field == "num_key_value_heads":
        size = source.num_attention_heads
    return size if size is not None and size > 0 else None


def _tensor_parallel_size(context: RuleContext) -> int | None:
    size = context.config.parallelism.tensor_parallel_size
    return size if size > 0 else None
