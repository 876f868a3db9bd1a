"""A published training speed as the planner's own inputs: model, layout, cluster, who trains, and the seconds of a step.

What a row leaves out has a default with a reason; none depends on the row's id:

======================  ==============================================================================================
left out                taken
======================  ==============================================================================================
layers, hidden, heads   the named model's; heads of another row of the source that is as wide, else of 128; layers from
                        the number of parameters
ffn, kv_heads, vocab    4 x hidden; heads; GPT-2's 50,257, or what the notes say
dp                      gpus / (tp x pp x context parallel)
micro_batch             1, as pipelines run it
global_batch            one pass of every replica
zero_stage              0; 1 for Megatron-Core, whose recipes use its distributed optimizer, and for BigScience's runs
sequence_parallel       with tensor parallelism under Megatron-Core and torchtitan, which always use it
recompute, precision    none; 16 bits
step_time_s             from tokens/s, or from the FLOP/s by the source's own count
======================  ==============================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.config.enums import RecomputePolicy
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.layout import ParallelLayout
from tests.benchmarks.published_devices import find_device, published_cluster
from tests.benchmarks.published_memory import NotPredictable, PublishedModel, model_of
from tests.benchmarks.published_rows import Row
from tests.benchmarks.published_shapes import known_shape

GPT2_VOCABULARY = 50257
DEFAULT_HEAD_DIM = 128
TUNED_DEPTHS = ("12", "24")
"""Layers of the single-node vTrain rows that the cost model's constants were chosen on."""
MIXTURES = re.compile(
    r"moe|\d experts|mixtral|\d+x\d+b|deepseek[\W_]?(v\d|r1)|gpt[\W_]?oss|kimi|nemotron|dbrx|grok|[\W_]a\d+(\.\d+)?b\b"
)
"""Words of models with experts, which the planner does not know."""
FULL_RECOMPUTE = ("full", "yes", "true", "1")


class System(StrEnum):
    """Who trains, as far as it decides what overlaps."""

    megatron = "megatron"
    """Megatron-LM of 2021 and 2022: gradients are reduced after the last backward pass."""
    megatron_core = "megatron_core"
    """Megatron-Core: distributed optimizer, reductions and gathers overlap."""
    deepspeed = "deepspeed"
    """DeepSpeed, with Megatron-DeepSpeed's pipeline or ZeRO."""
    fsdp = "fsdp"
    """FSDP, that is ZeRO-3 or ZeRO-2 with prefetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is predicted for a row."""

    row: Row
    """With what it left out filled in."""
    source: str
    system: System
    model: PublishedModel
    layout: ParallelLayout
    cluster: ClusterSpec
    zero_stage: int
    recompute: RecomputePolicy
    sequence_parallel: bool
    num_chunks: int
    """Chunks of the model on a pipeline stage (interleaving)."""
    context_parallel_size: int
    fused_attention: bool
    measured_seconds: float | None
    """Of a step; ``None`` for a run out of memory."""

    @property
    def scale(self) -> float:
        """The row's batch over that of the layout, which is a whole number of passes."""
        return self.row.whole("global_batch") * self.context_parallel_size / self.layout.train_batch_size

    @property
    def group(self) -> tuple[str, ...]:
        """Rows with the same are layouts of one problem."""
        names = ("layers", "hidden", "heads", "ffn", "seq_len", "global_batch", "gpus", "gpu", "precision")
        return (self.source, *(self.row.text(name) for name in names))

    @property
    def layout_key(self) -> tuple[object, ...]:
        """Rows of a group with the same are repeated measurements."""
        sizes = (self.layout, self.zero_stage, self.recompute, self.num_chunks, self.sequence_parallel)
        return (*sizes, self.row.text("notes") if self.source not in REPEATING else "")


REPEATING = ("bloom", "vtrain_single", "vtrain_multi")
"""Sources whose notes do not tell layouts apart."""


def source_of(row: Row) -> str:
    """The source a row counts for: what stands before the first dash of its id; vTrain's two files are two sources."""
    name = row.group
    if name != "vtrain":
        return name
    several = row.id.startswith("vtrain-m") or "multi" in row.text("source")
    return "vtrain_multi" if several else "vtrain_single"


def is_tuned(row: Row) -> bool:
    """Whether the cost model's constants were chosen with this row in view; the ids are those of the file that we had."""
    if row.id.startswith("nar21-t1"):
        return row.id in TUNED_NARAYANAN
    return source_of(row) == "vtrain_single" and row.text("layers") in TUNED_DEPTHS


TUNED_NARAYANAN = tuple(f"nar21-t1-{size}" for size in ("3.6b", "7.5b", "145b", "310b", "530b", "1t"))


def states_a_run(row: Row) -> bool:
    """Whether a row states model shape, layout, batch and device, and a speed."""
    shape = all(row.size(name) for name in ("layers", "hidden", "heads")) or known_shape(row.text("model")) is not None
    layout = all(row.size(name) for name in ("gpus", "seq_len")) and all(row.number(name) is not None for name in ("tp", "pp"))
    batch = row.size("global_batch") or row.size("micro_batch")
    speed = any((row.number(name) or 0) > 0 for name in ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"))
    return bool(shape and layout and batch and speed and row.text("gpu")) and not is_mixture(row)


def is_mixture(row: Row) -> bool:
    """Whether the model has experts."""
    return MIXTURES.search(f"{row.text('model')} {row.text('notes')}") is not None


def out_of_memory(row: Row) -> bool:
    """Whether the run failed for lack of memory."""
    return bool(re.search(r"\boom\b|out of memory", row.text("notes")))


def read_runs(rows: Sequence[Row]) -> list[Run | str]:
    """What is predicted for each row, or why nothing is."""
    completed = _with_heads_of_the_source(rows)
    return [_run_or_reason(row) for row in completed]


def _run_or_reason(row: Row) -> Run | str:
    try:
        return run_of(row)
    except NotPredictable as problem:
        return str(problem)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as problem:
        return f"the row makes no run: {type(problem).__name__} {problem}"


def run_of(row: Row) -> Run:
    """The planner's inputs for ``row``. Raises NotPredictable."""
    if is_mixture(row):
        raise NotPredictable("a mixture of experts, which the planner does not know")
    row = completed_row(row)
    system = system_of(row)
    cluster = published_cluster(row)
    if cluster is None and find_device(row.text("gpu")) is None:
        raise NotPredictable(f"the device {row.text('gpu') or 'that is not stated'} is not known")
    if cluster is None:
        raise NotPredictable(f"no cluster has {row.whole('gpus')} devices")
    context = context_parallel_size(row)
    model = model_of(row, "megatron" if system in (System.megatron, System.megatron_core) else system.value)
    shards = system is System.megatron_core or (system is System.deepspeed and "bigscience" in row.text("source"))
    stage = row.whole("zero_stage", int(shards))
    return Run(
        row=row,
        source=source_of(row),
        system=system,
        model=model,
        layout=_layout(row, context),
        cluster=cluster,
        zero_stage=min(3, max(0, stage)),
        recompute=_recompute(row),
        sequence_parallel=_is_sequence_parallel(row, system),
        num_chunks=_num_chunks(row),
        context_parallel_size=context,
        fused_attention=_fuses_attention(row, system),
        measured_seconds=None if out_of_memory(row) else measured_seconds(row, model),
    )


def completed_row(row: Row) -> Row:
    """The row with what it left out. Raises NotPredictable where that cannot be known."""
    if row.whole("tp") < 1 and row.whole("pp") < 1 and row.whole("gpus") != 1:
        raise NotPredictable("the layout is not stated")
    odd = [name for name in ("tp", "pp") if row.text(name) and row.number(name) is None]
    if odd:
        raise NotPredictable(f"{odd[0]} is {row.text(odd[0])!r}, which is no number")
    row = _with_shape(row)
    tp, pp, context = max(1, row.whole("tp", 1)), max(1, row.whole("pp", 1)), context_parallel_size(row)
    gpus, dp = row.size("gpus"), row.size("dp")
    if not gpus and not dp:
        raise NotPredictable("neither gpus nor dp is stated")
    gpus = gpus or tp * pp * context * dp
    if gpus % (tp * pp * context):
        raise NotPredictable(f"tensor {tp} x pipeline {pp} x context {context} do not divide {gpus} devices")
    dp = gpus // (tp * pp * context)
    local = re.search(r"local batch (\d+)", row.text("notes"))
    if not row.size("micro_batch") and not row.size("global_batch") and local is None:
        raise NotPredictable("neither global_batch nor micro_batch is stated")
    micro = max(1, row.size("micro_batch"))
    batch = row.size("global_batch") or dp * (int(local.group(1)) if local else micro)
    sizes = {"tp": tp, "pp": pp, "dp": dp, "gpus": gpus, "micro_batch": micro, "global_batch": batch}
    return _with_fields(row, sizes)


def system_of(row: Row) -> System:
    """Who trains, by what source and notes say."""
    told = f"{row.text('source')} {row.text('notes')}"
    if any(name in told for name in ("torchtitan", "llm-foundry", "fsdp", "full_shard")):
        return System.megatron_core if "bridge" in told else System.fsdp
    if "bridge" in told or "megatron-core" in told or "param-gather" in told:
        return System.megatron_core
    if "deepspeed" in told or row.whole("zero_stage") > 0:
        return System.deepspeed
    return System.deepspeed if "bigscience" in told and "megatron-lm" not in told else System.megatron


def context_parallel_size(row: Row) -> int:
    """Ranks that share a sequence, from the notes."""
    stated = re.search(r"\bcp (\d+)\b", row.text("notes"))
    return max(1, int(stated.group(1))) if stated else 1


def measured_seconds(row: Row, model: PublishedModel) -> float | None:
    """Seconds of a step: as stated, from tokens/s, or from FLOP/s by the count that the source uses."""
    stated, tokens_per_second = row.number("step_time_s"), row.number("tokens_per_s_per_gpu")
    tokens, gpus = row.whole("global_batch") * row.whole("seq_len"), row.whole("gpus")
    if stated is not None and stated > 0:
        return stated
    if tokens_per_second is not None and tokens_per_second > 0:
        return tokens / tokens_per_second / gpus
    tflops = row.number("tflops_per_gpu")
    return None if tflops is None or tflops <= 0 else counted_flops(row, model) / (tflops * 1e12 * gpus)


def counted_flops(row: Row, model: PublishedModel) -> float:
    """FLOPs of a step as the source of a row counts them.

    BigScience's early logs: a factor x parameters x tokens. Megatron's papers: 24 B s l h^2 (1 + s / 6h + V / 12lh) for a
    forward pass, 4 of which make a step with full recomputation and 3 one without (Narayanan et al. 2021, equation 3).
    """
    tokens, notes = row.whole("global_batch") * row.whole("seq_len"), row.text("notes")
    factor = re.search(r"(\d) ?\* ?params ?\* ?tokens", notes)
    if factor:
        return float(factor.group(1)) * (row.number("n_params") or model.num_parameters) * tokens
    layers, hidden, sequence = model.num_hidden_layers, model.hidden_size, row.whole("seq_len")
    passes = 4 if "includes recompute" in notes or "recompute counted" in notes else 3
    ends = model.vocab_size / ((16 if passes == 4 else 12) * layers * hidden)
    return 24 * passes * tokens * layers * hidden**2 * (1 + sequence / (6 * hidden) + ends)


def _with_shape(row: Row) -> Row:
    shape = known_shape(row.text("model"))
    sizes = {} if shape is None else {name: size for name, size in shape._asdict().items() if row.whole(name) < 1}
    if shape is not None and row.whole("hidden") not in (0, shape.hidden):
        sizes = {}
    row = _with_fields(row, sizes)
    hidden = row.whole("hidden")
    if hidden < 1 or row.whole("seq_len") < 1:
        raise NotPredictable("hidden or seq_len is not stated")
    vocab = row.size("vocab") or _noted_vocabulary(row)
    filled = {"vocab": vocab, "heads": row.size("heads") or max(1, hidden // DEFAULT_HEAD_DIM)}
    parameters = row.number("n_params")
    if row.whole("layers") < 1 and parameters is not None:
        filled["layers"] = max(1, round((parameters - vocab * hidden) / (12 * hidden**2)))
    filled["kv_heads"] = row.size("kv_heads") or filled["heads"]
    filled["ffn"] = row.size("ffn") or 4 * hidden
    return _with_fields(row, filled)


def _noted_vocabulary(row: Row) -> int:
    noted = re.search(r"vocab about (\d+)k", row.text("notes"))
    return 1000 * int(noted.group(1)) if noted else GPT2_VOCABULARY


def _with_fields(row: Row, sizes: dict[str, int]) -> Row:
    return replace(row, fields={**row.fields, **{name: str(size) for name, size in sizes.items()}})


def _with_heads_of_the_source(rows: Iterable[Row]) -> list[Row]:
    """Rows without a number of heads get that of the first row of their source that is as wide and states one."""
    rows = list(rows)
    stated: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.whole("heads") > 0:
            stated.setdefault((row.group, row.whole("hidden")), row.whole("heads"))
    found = [stated.get((row.group, row.whole("hidden")), 0) if row.whole("heads") < 1 else 0 for row in rows]
    return [_with_fields(row, {"heads": heads}) if heads else row for row, heads in zip(rows, found, strict=True)]


def _layout(row: Row, context: int) -> ParallelLayout:
    """The layout, its batch a whole number of passes. Ranks that share a sequence count as replicas of a shorter pass."""
    dp, micro = row.whole("dp"), row.whole("micro_batch")
    passes = max(1, round(row.whole("global_batch") / (dp * micro)))
    replicas = dp * context
    return ParallelLayout(
        tensor_parallel_size=row.whole("tp"),
        pipeline_parallel_size=row.whole("pp"),
        data_parallel_size=replicas,
        train_batch_size=replicas * micro * passes,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=passes,
    )


def _is_sequence_parallel(row: Row, system: System) -> bool:
    stated = row.text("sequence_parallel")
    if stated:
        return stated in ("true", "yes", "1")
    return row.whole("tp") > 1 and system in (System.fsdp, System.megatron_core)


def _recompute(row: Row) -> RecomputePolicy:
    stated = row.text("recompute")
    if stated in FULL_RECOMPUTE:
        return RecomputePolicy.full
    return next((policy for policy in RecomputePolicy if policy.value == stated), RecomputePolicy.none)


def _num_chunks(row: Row) -> int:
    pp, chunks = row.whole("pp"), max(1, row.whole("virtual_pp", 1))
    if pp > 1 and chunks == 1 and "interleaved" in row.text("notes"):
        chunks = 2
    return chunks if pp > 1 and pp * chunks <= row.whole("layers") else 1


def _fuses_attention(row: Row, system: System) -> bool:
    """Whether scores stay on the chip: stated, or what the system runs. Megatron's fused softmax of 2021 writes them."""
    if "flash" in row.text("notes") or "sdpa" in row.text("notes"):
        return True
    return system in (System.fsdp, System.megatron_core)
