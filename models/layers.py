"""The layers of a model in order, and how one of them is built: first as shapes, then, filled and placed, as one rank's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig

from orchestrator.models.attention_inputs import AttentionInputs
from orchestrator.models.families.family import FamilyModules
from orchestrator.models.families.registry import FAMILY_MODULES
from orchestrator.models.parts import DecoderBlock, FinalNorm, OutputHead, PositionEmbedding, TokenEmbedding
from orchestrator.models.recompute import recomputed_attention
from orchestrator.models.sharding import describe_whole, has_partial_gradient, shard_block
from orchestrator.models.shards import Block, HfParameter, Split, describe, hf_parameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.tensor_parallel.mappings import sum_gradient
from orchestrator.planning.model_spec import ModelSpec

Fill = Callable[[HfParameter, Tensor], None]
"""Writes this rank's part of a Hugging Face parameter into a tensor of ours."""


class LayerKind(StrEnum):
    """What a layer of the list is."""

    embedding = "embedding"
    positions = "positions"
    block = "block"
    final_norm = "final_norm"
    head = "head"


LAYER_CLASSES: dict[LayerKind, type[nn.Module]] = {
    LayerKind.embedding: TokenEmbedding,
    LayerKind.positions: PositionEmbedding,
    LayerKind.block: DecoderBlock,
    LayerKind.final_norm: FinalNorm,
    LayerKind.head: OutputHead,
}


def layer_kinds(spec: ModelSpec) -> list[LayerKind]:
    """The layers of a model, in order; their places in this list are their global numbers."""
    positions = [LayerKind.positions] if spec.facts.learned_positions else []
    blocks = [LayerKind.block] * spec.num_hidden_layers
    return [LayerKind.embedding, *positions, *blocks, LayerKind.final_norm, LayerKind.head]


@dataclass(frozen=True, kw_only=True)
class LayerShapes:
    """Builds layers on the meta device: their parameters have one rank's shapes and know what they are, and take no memory."""

    spec: ModelSpec
    group: TensorParallelGroup
    recompute_attention: bool = False

    @cached_property
    def config(self) -> PretrainedConfig:
        """The Hugging Face config of the model."""
        config = AutoConfig.for_model(**deepcopy(dict(self.spec.hf_config)))
        kernel = self.spec.attention_implementation.value
        config._attn_implementation = recomputed_attention(kernel, self.family.block) if self.recompute_attention else kernel
        config.use_cache = False
        return config

    @property
    def family(self) -> FamilyModules:
        """What is known of the family's modules."""
        return FAMILY_MODULES[self.spec.family]

    @cached_property
    def inputs(self) -> AttentionInputs:
        """What all blocks of a process share."""
        return AttentionInputs(self.config, self.family.rotary, self.spec.attention_implementation)

    def build(self, number: int) -> nn.Module:
        """The layer with a global number, on the meta device. A tied head is the embedding: it has no layer of its own."""
        kind = layer_kinds(self.spec)[number]
        inputs = self.inputs if kind is LayerKind.block else None
        with torch.device("meta"):
            match kind:
                case LayerKind.embedding:
                    return self._embedding()
                case LayerKind.positions:
                    return self._positions()
                case LayerKind.block:
                    assert inputs is not None
                    return self._block(number - layer_kinds(self.spec).index(LayerKind.block), inputs)
                case LayerKind.final_norm:
                    norm = FinalNorm(self.family.final_norm(self.config))
                    describe_whole(norm.norm, self.family.names.final_norm)
                    return norm
                case LayerKind.head:
                    return self._head()

    def _embedding(self) -> nn.Module:
        spec, group = self.spec, self.group
        split = self._vocabulary()
        rows = split.local_length(group.size)
        embedding = TokenEmbedding(
            rows,
            spec.hidden_size,
            group.rank * rows,
            group=group,
            padding_id=self.config.pad_token_id if spec.facts.padded_embedding else None,
            scale=self.family.embedding_scale(self.config),
            dropout=0.0 if spec.facts.learned_positions else self.family.embedding_dropout(self.config),
        )
        self._describe_matrix(embedding, self.family.names.embedding, split)
        return embedding

    def _positions(self) -> nn.Module:
        name = self.family.names.positions
        assert name is not None
        positions = PositionEmbedding(
            self.spec.max_position_embeddings,
            self.spec.hidden_size,
            group=self.group,
            dropout=self.family.embedding_dropout(self.config),
        )
        describe_whole(positions, name)
        return positions

    def _block(self, index: int, inputs: AttentionInputs) -> nn.Module:
        block = self.family.block(self.config, layer_idx=index)
        shard_block(
            block,
            name=f"{self.family.names.blocks}.{index}",
            spec=self.spec,
            family=self.family,
            group=self.group,
            dropout=self.family.attention_dropout(self.config) > 0,
        )
        return DecoderBlock(block, index, inputs, group=self.group)

    def _head(self) -> nn.Module:
        split = self._vocabulary()
        rows = split.local_length(self.group.size)
        head = OutputHead(self.spec.hidden_size, rows, bias=False, group=self.group)
        self._describe_matrix(head, self.family.names.head, split)
        return head

    def _vocabulary(self) -> Split:
        """The vocabulary, of which the last ranks get less if it does not divide."""
        return Split(dim=0, blocks=(Block(units=self.spec.vocab_size),))

    def _describe_matrix(self, module: nn.Module, name: str, split: Split) -> None:
        shape = (self.spec.vocab_size, self.spec.hidden_size)
        describe(module.weight, HfParameter(name=f"{name}.weight", shape=shape, split=split))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How the parameters of a layer come to be on this rank: one at a time, so that no more than one is whole at once.

    ``partition``, if given, is ZeRO-3's: it leaves this rank its share of a parameter that has just been filled.
    """

    dtype: torch.dtype
    device: torch.device
    fill: Fill
    frozen: Sequence[re.Pattern[str]] = ()
    partition: Callable[[nn.Parameter], None] | None = None

    def place(self, layer: nn.Module, group: TensorParallelGroup) -> nn.Module:
        """Give every parameter of a layer from the meta device its memory and its values; returns the layer."""
        assert not list(layer.buffers()), "a buffer would have no values"
        for module in layer.modules():
            for name, shape in list(module.named_parameters(recurse=False)):
                setattr(module, name, self._placed(shape, group))
        return layer

    def _placed(self, shape: nn.Parameter, group: TensorParallelGroup) -> nn.Parameter:
        hf = hf_parameter(shape)
        values = torch.empty(shape.shape, dtype=self.dtype, device=self.device)
        self.fill(hf, values)
        frozen = any(pattern.search(hf.name) for pattern in self.frozen)
        parameter = nn.Parameter(values, requires_grad=not frozen)
        for attribute, value in vars(shape).items():
            setattr(parameter, attribute, value)
        _prepare_gradient(parameter, group)
        if self.partition is not None:
            self.partition(parameter)
        return parameter


def _prepare_gradient(parameter: nn.Parameter, group: TensorParallelGroup) -> None:
    """Sum what is partial, and tell DeepSpeed what to count: each element once in the norm over all ranks."""
    split = hf_parameter(parameter).split
    if split is None:
        if has_partial_gradient(parameter, group):
            sum_gradient(parameter, group.process_group)
        return
    sharers = split.sharers(group.size)
    if sharers > 1:
        sum_gradient(parameter, group.key_value_group)
    parameter.tensor_model_parallel = group.rank % sharers == 0
