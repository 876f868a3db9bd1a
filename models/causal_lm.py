"""The causal language model of a rank without a pipeline: all layers, this rank's part of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from orchestrator.models.layers import LayerKind, LayerShapes, Placement, layer_kinds
from orchestrator.models.parts import tied_head
from orchestrator.models.recompute import Recompute, run_layers

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits of this rank and labels of a micro-batch to its loss."""
EMBEDDING = "embedding"
"""Key of the token embedding among the tied modules of a model whose head is its embedding."""


class CausalLM(nn.Module):
    """Token ids (micro_batch, sequence) to this rank's columns of the logits, (micro_batch, sequence, vocab_local).

    Parameters have the names that a pipeline gives them: the global number of their layer, or ``tied_modules.embedding``
    for an embedding that is the head as well.
    """

    def __init__(self, shapes: LayerShapes, placement: Placement | None, recompute: Recompute, loss_fn: Loss | None) -> None:
        """``placement`` None leaves the model on the meta device: shapes and names only."""
        super().__init__()
        self.loss_fn = loss_fn
        self.group = shapes.group
        self.recompute = recompute
        self.tied_modules = nn.ModuleDict()
        self._layers: list[Callable[..., Tensor]] = []
        for number, kind in enumerate(layer_kinds(shapes.spec)):
            tied = shapes.spec.tie_word_embeddings
            if tied and kind is LayerKind.head:
                self._layers.append(partial(tied_head, self.tied_modules[EMBEDDING]))
                continue
            layer = shapes.build(number)
            layer = layer if placement is None else placement.place(layer, shapes.group)
            self._layers.append(layer)
            if tied and kind is LayerKind.embedding:
                self.tied_modules[EMBEDDING] = layer
            else:
                self.add_module(str(number), layer)

    def forward(self, input_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """This rank's logits.

        ``positions`` (micro_batch, sequence): where each token stands in its document. Attention and positions start anew at
        each 0. None: a row is one document.
        """
        return run_layers(self._layers, input_ids, self.recompute, group=self.group, positions=positions)
