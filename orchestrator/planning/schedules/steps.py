"""The words that schedules are written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a stage computes in a step. ``backward`` is both of its halves at once."""

    forward = "forward"
    backward = "backward"
    backward_input = "backward_input"
    """Gradient for the inputs: what the stage before waits for."""
    backward_weight = "backward_weight"
    """Gradient for the weights: nobody waits for it before the optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One pass of one micro-batch through one of the model chunks that a stage holds."""

    kind: Kind
    micro_batch: int
    chunk: int = 0
    weight_version: int = 0
    """How many updates the weights that the pass uses have seen; without updates midway always 0."""
    updates_weights: bool = False
    """Whether the stage updates its weights at the end of this pass, with more micro-batches to come."""
    overlaps_next: bool = False
    """Whether this forward runs together with the backward that follows: they start once both can, and end together."""


class Place(NamedTuple):
    """A chunk of the model on a stage."""

    stage: int
    chunk: int


Steps = tuple[Step, ...]
"""What one stage does, in order."""
Route = tuple[Place, ...]
"""The places that the forward pass of a micro-batch goes through; the backward pass takes them from last to first."""
