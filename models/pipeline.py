"""The causal language model of a rank in a pipeline: the layers of its stage, as DeepSpeed's PipelineModule runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from deepspeed.runtime.pipe.dualpipev import DualPipeVModule
from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from orchestrator.models.causal_lm import EMBEDDING, Loss
from orchestrator.models.layers import LAYER_CLASSES, LayerKind, LayerShapes, Placement, layer_kinds
from orchestrator.models.parts import tied_head
from orchestrator.models.recompute import Recompute, run_layers


class PipelineStages(PipelineModule):
    """A pipeline cut at given boundaries: stage ``s`` holds layers ``boundaries[s]`` to ``boundaries[s + 1] - 1``.

    Only the layers of this rank are ever built. Where attention starts anew at each document, a micro-batch's inputs are token
    ids and positions, and the positions go from stage to stage beside the hidden states: DeepSpeed sends every tensor of a
    tuple on, and a gradient back for those of floating point only.
    """

    def __init__(
        self,
        shapes: LayerShapes,
        placement: Placement,
        recompute: Recompute,
        *,
        boundaries: Sequence[int],
        topology: PipeModelDataParallelTopology,
        loss: Loss,
    ) -> None:
        # nn.Module keeps plain values even before its own constructor has run.
        object.__setattr__(self, "boundaries", tuple(boundaries))
        object.__setattr__(self, "group", shapes.group)
        object.__setattr__(self, "recompute", recompute)
        super().__init__(layers=layer_specs(shapes, placement), topology=topology, loss_fn=loss)

    def forward(self, forward_input: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        """This stage's part of the forward pass: of what the stage before gave to what the next one gets, or to the logits."""
        x, positions = (forward_input, None) if isinstance(forward_input, Tensor) else forward_input
        x = run_layers(self.forward_funcs, x, self.recompute, group=self.group, positions=positions)
        is_last = self._local_stop == self._num_layers
        return x if positions is None or is_last else (x, positions)

    def _partition_layers(self, method: str = "uniform") -> None:  # noqa: ARG002 - DeepSpeed's signature
        stage = self._topo.get_coord(self.global_rank).pipe
        assert len(self.boundaries) == self.num_stages + 1
        self.parts = list(self.boundaries)
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


class DualPipeStages(DualPipeVModule, PipelineStages):
    """A pipeline folded in two: rank ``r`` of ``p`` holds stages ``r`` and ``2 p - 1 - r``."""


class _Built(LayerSpec):
    """A layer that is built by a function when its stage needs it."""

    def __init__(self, kind: type[nn.Module], make: Callable[[], nn.Module]) -> None:
        super().__init__(kind)
        self._make = make

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 - DeepSpeed's signature
        return self._make()


class _BuiltTied(TiedLayerSpec):
    """The token embedding where it is also the head."""

    def __init__(self, kind: type[nn.Module], make: Callable[[], nn.Module], forward: Callable[..., Any] | None) -> None:
        super().__init__(EMBEDDING, kind, forward_fn=forward, tied_weight_attr="weight")
        self._make = make

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 - DeepSpeed's signature
        return self._make()


def layer_specs(shapes: LayerShapes, placement: Placement) -> list[LayerSpec]:
    """The model as DeepSpeed wants it; nothing is built yet."""

    def maker(number: int) -> Callable[[], nn.Module]:
        return lambda: placement.place(shapes.build(number), shapes.group)

    specs: list[LayerSpec] = []
    for number, kind in enumerate(layer_kinds(shapes.spec)):
        layer_class = LAYER_CLASSES[kind]
        if shapes.spec.tie_word_embeddings and kind in (LayerKind.embedding, LayerKind.head):
            forward = tied_head if kind is LayerKind.head else None
            specs.append(_BuiltTied(LAYER_CLASSES[LayerKind.embedding], maker(0), forward))
        else:
            specs.append(_Built(layer_class, maker(number)))
    return specs
