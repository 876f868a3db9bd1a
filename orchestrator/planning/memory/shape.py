"""What a rank holds, in parameters: the input of every memory kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.layers import layer_parameters
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.planning.partition import Stage, num_leading_layers, num_model_layers


class RankShape(NamedTuple):
    """Elements on one rank, after tensor and pipeline parallelism and before ZeRO."""

    parameters: Size
    trainable_parameters: Size
    """Those with a gradient and optimizer states."""
    largest_parameter: Size
    """Elements of the largest single tensor: ZeRO-3 gathers it at once, ZeRO-1 and 2 reduce it whole."""
    persistent_parameters: Size
    """Elements of the tensors below ZeRO-3's persistence threshold, which stay gathered."""
    muon_parameters: Size = 0
    """Trained elements in the matrices of layers: those that Muon updates, if it is the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShapes:
    """Elements of the parts of a model on one tensor-parallel rank: what the shapes of all its stages are made of.

    ``known_shapes`` gives the same object for the same number of ranks.
    """

    spec: ModelSpec
    layer: Size
    token_embedding: Size
    """That, or the head."""
    in_matrices: Size
    """Of a layer."""
    largest_matrix: Size
    """Of a layer."""
    persistent: Size
    """Of a layer."""
    ranks: dict[Any, RankShape] = field(default_factory=dict, repr=False, compare=False)
    """The shapes that were asked for, by the kinds of their stages."""

    def of_rank(self, held: Sequence[Stage], trainable_shares: Sequence[float] | None = None) -> RankShape:
        """The shape of any rank that holds the stages ``held``.

        A tied head is a second copy of the token embedding unless the rank holds both. ``trainable_shares`` is the share of
        each layer of the model that is trained (``parameter_names.py``); without it all is.
        """
        if trainable_shares is not None:
            return self._of_rank(held, trainable_shares)
        kind = tuple(stage.kind for stage in held)
        shape = self.ranks.get(kind)
        if shape is None:
            shape = self.ranks[kind] = self._of_rank(held, None)
        return shape

    def _of_rank(self, held: Sequence[Stage], trainable_shares: Sequence[float] | None) -> RankShape:
        parts = [part for stage in held for part in self._parts(stage)]
        if self.spec.tie_word_embeddings and any(stage.has_embedding for stage in held):
            parts = [part for part in parts if part[0].stop != num_model_layers(self.spec)]
        parameters = sum(size * len(layers) for layers, size in parts)
        trained = parameters
        if trainable_shares is not None:
            trained = round(sum(float(size) * sum(trainable_shares[layer] for layer in layers) for layers, size in parts))
        num_layers = sum(stage.num_layers for stage in held)
        with_vocabulary = any(stage.has_embedding or stage.has_head for stage in held)
        return RankShape(
            parameters=parameters,
            trainable_parameters=trained,
            largest_parameter=larger(self.largest_matrix, self.token_embedding) if with_vocabulary else self.largest_matrix,
            persistent_parameters=smaller(parameters, num_layers * self.persistent),
            muon_parameters=smaller(num_layers * self.in_matrices, trained),
        )

    def _parts(self, stage: Stage) -> Iterator[tuple[range, Size]]:
        """Places in the list of layers of equal layers of ``stage``, and the elements of one of them on one rank."""
        spec = self.spec
        first, end = num_leading_layers(spec), num_model_layers(spec)
        if stage.has_embedding:
            yield range(1), self.token_embedding
        if stage.has_positions:
            yield range(1, 2), spec.max_position_embeddings * spec.hidden_size
        if stage.num_layers:
            start = first + stage.first_layer
            yield range(start, start + stage.num_layers), self.layer
        if stage.has_final_norm:
            yield range(end - 2, end - 1), spec.final_norm_parameters
        if stage.has_head:
            yield range(end - 1, end), self.token_embedding


def tensor_shapes(spec: ModelSpec, *, tensor_parallel_size: Size, persistence_threshold: int) -> TensorShapes:
    """What tensor parallelism leaves of each part of ``spec`` on a rank."""
    matrices = layer_matrices(spec, tensor_parallel_size)
    layer, in_matrices = layer_parameters(spec, tensor_parallel_size), sum(matrices)
    # A layer's vectors count as hidden_size long.
    persistent = sum(matrix * (matrix <= persistence_threshold) for matrix in matrices)
    return TensorShapes(
        spec=spec,
        layer=layer,
        token_embedding=_token_embedding(spec, tensor_parallel_size),
        in_matrices=in_matrices,
        largest_matrix=larger(*matrices),
        persistent=persistent + (layer - in_matrices) * (spec.hidden_size <= persistence_threshold),
    )


known_shapes = lru_cache(maxsize=256)(tensor_shapes)
"""``tensor_shapes`` of a number of ranks: many layouts have them in common."""


def rank_shape(
    spec: ModelSpec,
    held: Sequence[Stage],
    *,
    tensor_parallel_size: Size,
    persistence_threshold: int,
    trainable_shares: Sequence[float] | None = None,
) -> RankShape:
    """``TensorShapes.of_rank`` of one rank alone."""
    shapes = tensor_shapes(spec, tensor_parallel_size=tensor_parallel_size, persistence_threshold=persistence_threshold)
    return shapes.of_rank(held, trainable_shares)


def largest_parameter(spec: ModelSpec, *, tensor_parallel_size: Size, with_vocabulary: bool = True) -> Size:
    """Elements of the largest tensor on a rank: the token embedding (or the head) where it is held, or a layer's matrix."""
    in_layer = larger(*layer_matrices(spec, tensor_parallel_size))
    return larger(in_layer, _token_embedding(spec, tensor_parallel_size)) if with_vocabulary else in_layer


def _token_embedding(spec: ModelSpec, tensor_parallel_size: Size) -> Size:
    return ceil_divide(spec.vocab_size, tensor_parallel_size) * spec.hidden_size


def layer_matrices(spec: ModelSpec, tensor_parallel_size: Size) -> list[Size]:
    """Elements of each matrix of a layer, in the order they are used."""
    widths = spec.layer_widths(tensor_parallel_size)
    hidden, facts = spec.hidden_size, spec.facts
    if facts.fused_query_key_value:
        projections = [hidden * (widths.query + 2 * widths.key_value)]
    else:
        projections = [hidden * widths.query, hidden * widths.key_value, hidden * widths.key_value]
    if facts.fused_gate_up:
        mlp = [2 * hidden * widths.intermediate, hidden * widths.intermediate]
    else:
        mlp = [hidden * widths.intermediate] * (3 if facts.gated_mlp else 2)
    return [*projections, hidden * widths.query, *mlp]
