"""What one pipeline stage computes for one micro-batch, with the collectives of tensor parallelism inside it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from orchestrator.planning.broadcast import larger
from orchestrator.planning.cost.compute import (
    LayerSeconds,
    embedding_seconds,
    gradient_seconds,
    head_seconds,
    layer_seconds,
)
from orchestrator.planning.cost.groups import all_reduce_seconds, gather_seconds
from orchestrator.planning.cost.placement import Placement, placed
from orchestrator.planning.cost.speeds import Speeds
from orchestrator.planning.layers import kept_input_bytes
from orchestrator.planning.memory.activations import Pass
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.planning.partition import Stage


class PassWork(NamedTuple):
    """One pass, whichever stages a rank holds."""

    passed: Pass
    speeds: Speeds
    layer: LayerSeconds
    embedding: tuple[Size, Size]
    head: tuple[Size, Size]
    """Forward and backward, as of the embedding."""
    tensor_group: Placement
    residual_bytes: Size
    """The residual stream of a micro-batch, whole."""
    tensor_gather: Size
    """Gathering the residual stream in the tensor-parallel group, or scattering it."""
    tensor_collective: Size
    """One all-reduce of the residual stream, or the gather and the scatter that replace it."""
    host_copy: Size
    """Copying the input of one recomputed layer or group to the host, or back."""


class StageWork(NamedTuple):
    """Seconds of one micro-batch on one stage."""

    layers: int
    layer: LayerSeconds
    ends_forward: Size
    """Embedding, head and loss."""
    ends_backward: Size
    gradients: Size
    """Adding weight gradients up."""
    tensor_forward: Size
    tensor_backward: Size
    host_copies: Size
    """Of kept inputs, in each of the two passes."""
    forward: Size
    """The forward pass with its collectives, never faster than the host launches it."""
    backward: Size


def pass_work(spec: ModelSpec, passed: Pass, speeds: Speeds) -> PassWork:
    """What all stages of a run have in common."""
    tensor_group = placed(num_ranks=passed.tensor_parallel_size, stride=1, slots=speeds.slots)
    residual = passed.micro_batch * passed.sequence_length * spec.hidden_size * passed.dtype_bytes
    gather = gather_seconds(residual, tensor_group, speeds)
    kept = kept_input_bytes(spec, **passed.sizes, partition_activations=passed.partition_activations)
    return PassWork(
        passed=passed,
        speeds=speeds,
        layer=layer_seconds(spec, passed, speeds),
        embedding=embedding_seconds(spec, passed, speeds),
        head=head_seconds(spec, passed, speeds),
        tensor_group=tensor_group,
        residual_bytes=residual,
        tensor_gather=gather,
        tensor_collective=2 * gather if passed.sequence_parallel else all_reduce_seconds(residual, tensor_group, speeds),
        host_copy=kept / speeds.host_link_bandwidth if passed.cpu_checkpointing else 0.0,
    )


known_pass_work = lru_cache(maxsize=1024)(pass_work)
"""``pass_work`` of a pass whose sizes are numbers: many layouts have it in common."""


def stage_work(work: PassWork, stage: Stage, *, parameters: Size, accumulates: Size, gradient_bytes: int) -> StageWork:
    """The work of ``stage``: ``parameters`` elements on each rank, whose gradients are added up in ``gradient_bytes`` each."""
    passed, layer, layers, collective = work.passed, work.layer, stage.num_layers, work.tensor_collective
    ends = [work.embedding] * stage.has_embedding + [work.head] * stage.has_head
    ends_forward, ends_backward = (sum(end[which] for end in ends) for which in (0, 1))
    again = 2 if passed.keeps_inputs else 1
    tensor_forward = (2 * layers + stage.has_embedding) * collective
    tensor_backward = (2 * layers * again + stage.has_head) * collective
    host_copies = ceil_divide(layers, passed.group_size) * work.host_copy
    gradients = gradient_seconds(
        parameters,
        accumulates=accumulates,
        gradient_bytes=gradient_bytes,
        dtype_bytes=passed.dtype_bytes,
        speeds=work.speeds,
    )
    ahead = layers * layer.forward + ends_forward + tensor_forward
    back = layers * (layer.backward + layer.recomputed) + ends_backward + gradients + tensor_backward
    return StageWork(
        layers=layers,
        layer=layer,
        ends_forward=ends_forward,
        ends_backward=ends_backward,
        gradients=gradients,
        tensor_forward=tensor_forward,
        tensor_backward=tensor_backward,
        host_copies=host_copies,
        forward=larger(ahead, layers * layer.launches) + host_copies,
        backward=larger(back, again * layers * layer.launches) + host_copies,
    )
