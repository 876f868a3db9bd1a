"""A published row as the planner's own inputs: model, kernels, pass, stages.

Every choice that a row does not state has a default with a reason; none depends on the row's id. The mapping:

==========================  ==========================================================================================
column or note              mechanism
==========================  ==========================================================================================
``attn``                    unfused: a score for each pair of tokens; flash, te_auto, sdpa, triton: none. Not stated:
                            fused with rotary positions (models since 2022), unfused with learned ones
``swiglu``, model           gated MLP and RMSNorm for Llama's relatives, GELU and LayerNorm for GPT's and BERT's
``impl``, ``sharding``      who trains: Megatron-LM's kernels, FSDP, DeepSpeed, or torch alone (``published_systems.py``)
``hidden_dropout``          dropout masks; Megatron's default 0.1, none in models without dropout
``vocab_note``, system      Megatron pads the vocabulary to a multiple of 128 x tp
``fused_ce``, ``liger``     cross entropy: Megatron's own copy, its jit-fused one, torch's, or none of the logits
``stage``, ``schedule``,    which stage is compared, how many micro-batches are in flight on it, and its layers
``vpp*``, ``*_layers``
==========================  ==========================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from orchestrator.config.enums import Accelerator, AttentionImplementation, Family, PipelineSchedule, RecomputePolicy
from orchestrator.planning.families import FAMILIES, NO, YES, FamilyFacts, NormKind
from orchestrator.planning.kernels import AttentionKernel, CrossEntropyKernel, Kernels, NormKernel
from orchestrator.planning.memory.activations import Pass, in_flight_micro_batches
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import Partition, partition_at, partition_layers
from tests.benchmarks.published_rows import Row

LLAMA_RELATIVES = ("llama", "mistral", "qwen", "gemma", "phi-3", "yi-", "deepseek")
ENCODERS = ("bert",)
WITHOUT_DROPOUT = ("mpt", "bloom")


MOST_LAYERS = 10_000


class NotPredictable(ValueError):
    """A row lacks what a prediction needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel(ModelSpec):
    """A shape whose facts the row states, whatever our families are."""

    architecture: FamilyFacts = field(hash=False)

    @property
    def facts(self) -> FamilyFacts:
        """What the row says."""
        return self.architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is predicted for a row."""

    row: Row
    system: str
    model: PublishedModel
    passed: Pass
    partition: Partition
    coordinates: tuple[int, ...]
    """The pipeline coordinates that are compared; the worst of them counts."""

    @property
    def data_parallel_size(self) -> int:
        """ZeRO or FSDP degree."""
        return max(1, self.row.whole("dp", 1))

    @property
    def pipeline_parallel_size(self) -> int:
        """Stages."""
        return self.partition.num_coordinates

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return max(1, self.row.whole("grad_accum", 1))

    def layer_sets(self, coordinate: int) -> float:
        """Layers of the stage times micro-batches whose activations it holds at once, divided by its layers."""
        layers = self.partition.stages[coordinate].num_layers
        chunks = _chunks(self.row, layers, self.pipeline_parallel_size, coordinate)
        if len(chunks) > 1 and layers:
            group = self.row.whole("mb_group", 0) or int(self.row.note("mb_group_per_vp_stage") or self.pipeline_parallel_size)
            behind = 2 * (self.pipeline_parallel_size - 1 - coordinate)
            held = [min(group + behind * (index == 0), self.micro_batches) for index in range(len(chunks) - 1)] + [1]
            return sum(count * size for count, size in zip(held, chunks, strict=True)) / layers
        schedule = PipelineSchedule.gpipe if "gpipe" in self.row.note("schedule") else PipelineSchedule.one_f_one_b
        in_flight = in_flight_micro_batches(
            coordinate,
            pipeline_parallel_size=self.pipeline_parallel_size,
            micro_batches=self.micro_batches,
            schedule=schedule,
        )
        return int(in_flight) if self.pipeline_parallel_size > 1 else 1


def case_of(row: Row) -> Case:
    """The planner's inputs for ``row``. Raises NotPredictable."""
    system = training_system(row)
    model = model_of(row, system)
    pp = max(1, row.whole("pp", 1))
    partition = _partition(row, model, pp)
    return Case(
        row=row,
        system=system,
        model=model,
        passed=_pass(row, system, model),
        partition=partition,
        coordinates=_coordinates(row, pp),
    )


def training_system(row: Row) -> str:
    """Who trains: ``megatron``, ``fsdp``, ``deepspeed`` or ``torch``."""
    source, impl, sharding = row.text("source"), row.note("impl"), row.note("sharding")
    if "fsdp" in sharding or "full_shard" in sharding or "shard_grad" in sharding or row.note("mp_mode"):
        return "fsdp"
    if impl in ("transformer_engine", "local") or "megatron-lm" in source or "megatron-bridge" in source:
        return "megatron"
    if row.note("framework") == "fsdp" or "torchtune" in source or "litgpt" in source:
        return "fsdp" if row.whole("dp", 1) > 1 else "torch"
    if row.whole("zero_stage") >= 1 or "deepspeed" in source or "bigscience" in source:
        return "deepspeed"
    return "torch"


def dtype_bytes(row: Row) -> int:
    """Bytes of a number in the forward pass."""
    return 4 if row.text("precision") == "fp32" else 2


def autocasts(row: Row) -> bool:
    """Whether torch's autocast runs the model: norms, softmax and loss in fp32."""
    precision = row.text("precision")
    return ("amp" in precision and training_system(row) == "torch") or "bf16 master" in row.note("master_states")


def model_of(row: Row, system: str) -> PublishedModel:
    """The shape that a row states, trained by ``system``. Raises NotPredictable."""
    layers, hidden, heads = (row.whole(name) for name in ("layers", "hidden", "heads"))
    if min(layers, hidden, heads) < 1 or row.whole("seq_len") < 1 or row.whole("micro_batch") < 1:
        raise NotPredictable("layers, hidden, heads, seq_len or micro_batch is not stated")
    if layers > MOST_LAYERS or row.whole("pp", 1) > layers:
        raise NotPredictable(f"no model has {layers} layers on {row.whole('pp', 1)} stages")
    gated = _is_gated(row)
    tensor = max(1, row.whole("tp", 1))
    vocab = max(1, row.whole("vocab", 1))
    if system == "megatron" or "padded to a multiple of 128*tp" in row.notes:
        vocab = -(-vocab // (128 * tensor)) * 128 * tensor
    tied = row.flag("tied")
    name = row.text("model")
    has_rms_norm = "llama" in name or (gated and row.note("swiglu") != "yes")
    facts = replace(
        FAMILIES[Family.llama if gated else Family.gpt2],
        norm=NormKind.rms_norm if has_rms_norm else NormKind.layer_norm,
        learned_positions=not gated and row.note("pos") not in ("rope", "alibi", "none"),
        residual_dropout=True,
        embedding_dropout=True,
        fused_query_key_value=False,
        query_key_norm=bool(row.flag("qk_layernorm")) or "qwen3" in name,
        fp32_softmax=autocasts(row),
        query_key_value_bias=NO if gated or "mpt" in name else YES,
        mlp_bias=NO if gated or "mpt" in name else YES,
    )
    width = row.whole("ffn") or 4 * hidden
    return PublishedModel(
        name=name,
        family=facts.family,
        architecture=facts,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=row.whole("kv_heads") or heads,
        head_dim=row.whole("head_dim") or max(1, hidden // heads),
        max_position_embeddings=row.whole("seq_len"),
        tie_word_embeddings=(not gated and "untied" not in row.note("impl")) if tied is None else tied,
        attention_implementation=AttentionImplementation.sdpa,
        dropout=_dropout(row, gated, system),
        hf_config={facts.activation_key: "silu" if gated else "gelu"},
    )


def _is_gated(row: Row) -> bool:
    """Whether the MLP has a gate: stated, or a relative of Llama's whose MLP is not four times as wide as the model."""
    if row.flag("swiglu") is not None:
        return bool(row.flag("swiglu"))
    related = any(name in row.text("model") for name in LLAMA_RELATIVES)
    return related and row.whole("ffn") != 4 * row.whole("hidden")


def _dropout(row: Row, gated: bool, system: str) -> float:
    stated = re.match(r"[\d.]+", row.note("hidden_dropout"))
    if stated:
        return float(stated.group())
    without = any(name in row.text("model") for name in WITHOUT_DROPOUT) or row.note("impl").startswith("nn.")
    return 0.0 if (gated and system != "megatron") or without else 0.1


def _pass(row: Row, system: str, model: PublishedModel) -> Pass:
    recompute = row.text("recompute")
    policy = {"full": RecomputePolicy.full, "selective": RecomputePolicy.selective}.get(recompute, RecomputePolicy.none)
    return Pass(
        micro_batch=row.whole("micro_batch"),
        sequence_length=max(1, row.whole("seq_len") // max(1, int(row.note("cp") or 1))),
        dtype_bytes=dtype_bytes(row),
        tensor_parallel_size=max(1, row.whole("tp", 1)),
        sequence_parallel=row.text("sequence_parallel") == "yes",
        recompute=policy,
        accelerator=Accelerator.cuda,
        kernels=_kernels(row, system, model),
    )


def _kernels(row: Row, system: str, model: PublishedModel) -> Kernels:
    gated, rms = model.facts.gated_mlp, model.facts.norm is NormKind.rms_norm
    liger = row.flag("liger") is not False and "liger" in " ".join(row.notes.values()).lower()
    written_out = rms and not liger and system != "megatron"
    legacy_megatron = system == "fsdp" and gated and "galvatron" in row.text("source")
    return Kernels(
        attention=_attention(row, gated),
        norm=NormKernel.written_out if written_out or autocasts(row) else NormKernel.fused,
        activation_tensors=0 if gated and (liger or system == "megatron") else None,
        gathers_inputs_again=system != "deepspeed",
        copies_split_outputs=legacy_megatron,
        batch_first_attention=legacy_megatron,
        cross_entropy=_cross_entropy(row, system, liger),
    )


def _attention(row: Row, gated: bool) -> AttentionKernel:
    stated = row.note("attn")
    if "unfused" in stated or "eager" in stated or "local" in stated:
        return AttentionKernel.eager
    if stated:
        return AttentionKernel.fused
    return AttentionKernel.fused if gated else AttentionKernel.eager


def _cross_entropy(row: Row, system: str, liger: bool) -> CrossEntropyKernel:
    """Liger and encoders without a language-model head make no logits; flash-attention's fused loss (llm-foundry) and
    Galvatron's for GPT write the gradient over them."""
    if liger or any(name in row.text("model") for name in ENCODERS):
        return CrossEntropyKernel.fused_linear
    if system == "megatron":
        return CrossEntropyKernel.unfused if row.flag("fused_ce") else CrossEntropyKernel.one_copy
    if row.note("impl").startswith("nn."):
        return CrossEntropyKernel.unfused if autocasts(row) else CrossEntropyKernel.half_precision
    if system == "fsdp":
        return CrossEntropyKernel.one_copy_kept if _is_gated(row) else CrossEntropyKernel.in_place
    if "bigscience" in row.text("source") or "gpt" in row.text("model"):
        return CrossEntropyKernel.one_copy
    return CrossEntropyKernel.unfused


def _partition(row: Row, model: PublishedModel, pp: int) -> Partition:
    layers = model.num_hidden_layers
    if pp == 1:
        return partition_layers(model, pipeline_parallel_size=1, method="uniform")
    leading = 2 if model.facts.learned_positions else 1
    counts = _layer_counts(row, layers, pp)
    inner = [leading + sum(counts[: index + 1]) for index in range(pp - 1)]
    return partition_at(model, (0, *inner, leading + layers + 2))


def _layer_counts(row: Row, layers: int, pp: int) -> list[int]:
    """Transformer layers of each stage: even, or with the ends of the model counted, or as stated."""
    first, last = row.note("first_stage_layers"), row.note("last_stage_layers")
    if first.isdigit() and last.isdigit() and pp > 2:
        middle = _even(layers - int(first) - int(last), pp - 2)
        return [int(first), *middle, int(last)]
    told = " ".join([*row.notes, row.note("note")])
    ends_count = "embed" in told and ("counted as a layer" in told or "|embed" in told)
    if row.flag("account_for_embedding_and_loss_in_split") or ends_count:
        chunks = max(1, int(row.note("vpp") or 1))
        even = _even(layers + 2, pp * chunks)
        even[0] -= 1
        even[-1] -= 1
        return [sum(even[stage::pp]) for stage in range(pp)]
    return _even(layers, pp)


def _even(count: int, parts: int) -> list[int]:
    share, rest = divmod(max(count, 0), parts)
    return [share + (index < rest) for index in range(parts)]


def _chunks(row: Row, layers: int, pp: int, coordinate: int) -> list[int]:
    """Layers of each of the stage's chunks, in the order of the model."""
    per_chunk, stated = row.note("vpp_layers_per_chunk"), row.note("vpp")
    if per_chunk.isdigit() and int(per_chunk):
        return _even(layers, max(1, layers // int(per_chunk)))
    if not stated.isdigit():
        return [layers]
    chunks = int(stated)
    if row.flag("account_for_embedding_and_loss_in_split"):
        even = _even(row.whole("layers") + 2, pp * chunks)
        even[0] -= 1
        even[-1] -= 1
        return even[coordinate::pp]
    return _even(layers, chunks)


def _coordinates(row: Row, pp: int) -> tuple[int, ...]:
    stage = row.note("stage")
    if stage.startswith("first"):
        return (0,)
    if stage.startswith("last"):
        return (pp - 1,)
    if stage.startswith("middle"):
        return (pp // 2,)
    return tuple(range(pp))
