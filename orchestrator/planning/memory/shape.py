"""What the rank of one pipeline stage holds, in parameters: the input of every memory kernel."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.layers import embedding_parameters, final_norm_parameters, head_parameters, layer_parameters
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide, layer_matrix_parameters
from orchestrator.planning.partition import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """Elements on one rank of one stage, after tensor and pipeline parallelism and before ZeRO."""

    parameters: Size
    largest_parameter: Size
    """Elements of the largest single tensor: ZeRO-3 gathers it at once, ZeRO-1 and 2 reduce it whole."""
    persistent_parameters: Size
    """Elements of the tensors below ZeRO-3's persistence threshold, which stay gathered."""


def rank_shape(
    spec: ModelSpec, stage: Stage, *, tensor_parallel_size: Size, pipeline_parallel_size: int, persistence_threshold: int
) -> RankShape:
    """The shape of any rank of ``stage``. With a pipeline, a tied head is a second copy of the token embedding."""
    layers = stage.num_layers * layer_parameters(spec, tensor_parallel_size)
    embedding = embedding_parameters(spec, tensor_parallel_size) if stage.has_embedding else 0
    ends = final_norm_parameters(spec) + head_parameters(spec, tensor_parallel_size) if stage.has_head else 0
    if stage.has_head and spec.tie_word_embeddings and pipeline_parallel_size > 1:
        ends = ends + _token_embedding(spec, tensor_parallel_size)
    parameters = layers + embedding + ends
    persistent = stage.num_layers * _persistent_in_layer(spec, tensor_parallel_size, persistence_threshold)
    return RankShape(
        parameters=parameters,
        largest_parameter=largest_parameter(
            spec, tensor_parallel_size=tensor_parallel_size, with_vocabulary=stage.has_embedding or stage.has_head
        ),
        persistent_parameters=smaller(parameters, persistent),
    )


def largest_parameter(spec: ModelSpec, *, tensor_parallel_size: Size, with_vocabulary: bool = True) -> Size:
    """Elements of the largest tensor on a rank: the token embedding (or the head) where it is held, or a layer's matrix."""
    in_layer = larger(*_layer_matrices(spec, tensor_parallel_size))
    return larger(in_layer, _token_embedding(spec, tensor_parallel_size)) if with_vocabulary else in_layer


def _token_embedding(spec: ModelSpec, tensor_parallel_size: Size) -> Size:
    return ceil_divide(spec.vocab_size, tensor_parallel_size) * spec.hidden_size


def _persistent_in_layer(spec: ModelSpec, tensor_parallel_size: Size, threshold: int) -> Size:
    """Elements of a layer's tensors of at most ``threshold`` elements; its vectors count as hidden_size long."""
    matrices = _layer_matrices(spec, tensor_parallel_size)
    widths = spec.layer_widths(tensor_parallel_size)
    in_matrices = sum((matrix * (matrix <= threshold) for matrix in matrices), start=0 * matrices[0])
    vectors = layer_parameters(spec, tensor_parallel_size) - layer_matrix_parameters(spec.facts, spec.hidden_size, widths)
    return in_matrices + vectors * (spec.hidden_size <= threshold)


def _layer_matrices(spec: ModelSpec, tensor_parallel_size: Size) -> list[Size]:
    """Elements of each matrix of a layer."""
    widths = spec.layer_widths(tensor_parallel_size)
    hidden, facts = spec.hidden_size, spec.facts
    if facts.fused_query_key_value:
        projections = [hidden * (widths.query + 2 * widths.key_value)]
    else:
        projections = [hidden * widths.query, hidden * widths.key_value, hidden * widths.key_value]
    return [*projections, hidden * widths.query, *[hidden * widths.intermediate] * (3 if facts.gated_mlp else 2)]
