"""One micro-batch on one pipeline stage: what its forward and its backward pass are made of. Sizes may be arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config.enums import RecomputePolicy
from orchestrator.planning.broadcast import larger
from orchestrator.planning.cost.compute import (
    LayerSeconds,
    embedding_seconds,
    gradient_seconds,
    head_seconds,
    layer_seconds,
)
from orchestrator.planning.cost.data_parallel import Traffic, data_parallel_traffic
from orchestrator.planning.cost.groups import all_reduce_seconds, gather_seconds
from orchestrator.planning.cost.optimizer import OptimizerSeconds, optimizer_seconds
from orchestrator.planning.cost.placement import Placement, placed
from orchestrator.planning.cost.speeds import Speeds, speeds_of
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.layers import kept_input_bytes, layer_parameters
from orchestrator.planning.memory.shape import RankShape, rank_shape
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.planning.partition import Stage
from orchestrator.units import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all stages of a step have in common, computed once."""

    step: TrainingStep
    speeds: Speeds
    layer: LayerSeconds
    tensor_group: Placement
    data_group: Placement
    tensor_collective: Size
    """Seconds of one all-reduce of the residual stream, or of the gather and scatter that replace it."""
    transfer: Size
    """Seconds of sending the residual stream to the next stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds of one micro-batch, and of what follows the last one, on the ranks of a pipeline coordinate."""

    compute_forward: Size
    compute_backward: Size
    recomputed: Size
    tensor_forward: Size
    tensor_backward: Size
    sends_forward: Size
    sends_backward: Size
    host_copies: Size
    """Kept inputs to the host in the forward pass, and back in the backward pass; of one of the two."""
    traffic: Traffic
    overlaps: bool
    """Whether the traffic of a pass runs beside its computation."""
    optimizer: OptimizerSeconds
    tied_reduction: Size

    @property
    def forward(self) -> Size:
        """The forward pass."""
        busy = self.compute_forward + self.tensor_forward + self.host_copies
        return self._beside(busy, self.traffic.forward_gather) + self.sends_forward

    @property
    def backward(self) -> Size:
        """The backward pass."""
        busy = self.compute_backward + self.recomputed + self.tensor_backward + self.host_copies
        return self._beside(busy, self.traffic.backward_gather + self.traffic.backward_reduction) + self.sends_backward

    @property
    def after_backward(self) -> Size:
        """Reductions after the last backward pass."""
        return self.traffic.boundary_reduction + self.tied_reduction

    @property
    def update(self) -> Size:
        """From the global norm to the next step."""
        parts = self.optimizer
        offloaded = parts.processors + parts.copies + parts.disk_reads + parts.disk_writes
        return parts.device + offloaded + self.traffic.parameter_gather

    def _beside(self, busy: Size, traffic: Size) -> Size:
        return larger(busy, traffic) if self.overlaps else busy + traffic


def surroundings_of(step: TrainingStep) -> Surroundings:
    """The common part of all stages."""
    speeds = speeds_of(step.cluster, step.settings.dtype)
    passed, tp = step.passed, step.passed.tensor_parallel_size
    tensor_group = placed(num_ranks=tp, stride=1, slots=speeds.slots)
    residual = passed.micro_batch * passed.sequence_length * step.spec.hidden_size * passed.dtype_bytes
    if passed.sequence_parallel:
        collective = 2 * gather_seconds(residual, tensor_group, speeds)
    else:
        collective = all_reduce_seconds(residual, tensor_group, speeds)
    return Surroundings(
        step=step,
        speeds=speeds,
        layer=layer_seconds(step.spec, passed, speeds),
        tensor_group=tensor_group,
        data_group=placed(num_ranks=step.data_parallel_size, stride=tp, slots=speeds.slots),
        tensor_collective=collective,
        transfer=_transfer_seconds(step, residual, speeds),
    )


def stage_seconds(around: Surroundings, held: Sequence[Stage]) -> tuple[StageSeconds, ...]:
    """The stages that one coordinate holds; the first of them carries what a rank does once a step."""
    step = around.step
    shape = rank_shape(
        step.spec,
        held,
        tensor_parallel_size=step.passed.tensor_parallel_size,
        persistence_threshold=step.settings.stage3_param_persistence_threshold,
    )
    return tuple(_stage(around, stage, held, shape, len(held)) for stage in held)


def _stage(around: Surroundings, stage: Stage, held: Sequence[Stage], shape: RankShape, shares: int) -> StageSeconds:
    step, layer, speeds = around.step, around.layer, around.speeds
    passed, spec, settings = step.passed, step.spec, step.settings
    layers = stage.num_layers
    forward, backward = layers * layer.forward, layers * layer.backward
    tensor_forward = 2 * layers * around.tensor_collective
    tensor_backward = tensor_forward * (2 if passed.keeps_inputs else 1)
    if stage.has_embedding:
        ends = embedding_seconds(spec, passed, speeds)
        forward, backward = forward + ends[0], backward + ends[1]
        tensor_forward = tensor_forward + around.tensor_collective
    if stage.has_head:
        ends = head_seconds(spec, passed, speeds)
        forward, backward = forward + ends[0], backward + ends[1]
        tensor_backward = tensor_backward + around.tensor_collective
    parameters = shape.parameters / shares
    gradients = gradient_seconds(
        parameters,
        accumulates=step.micro_batches > 1,
        gradient_bytes=DTYPE_BYTES[settings.grad_accum_dtype],
        dtype_bytes=passed.dtype_bytes,
        speeds=speeds,
    )
    sends = around.transfer if step.pipeline_parallel_size > 1 else 0 * around.transfer
    return StageSeconds(
        compute_forward=forward,
        compute_backward=backward + gradients,
        recomputed=layers * layer.recomputed(passed.recompute),
        tensor_forward=tensor_forward,
        tensor_backward=tensor_backward,
        sends_forward=0 * sends if stage.has_head else sends,
        sends_backward=0 * sends if stage.has_embedding else sends,
        host_copies=_host_copies(around, layers),
        traffic=data_parallel_traffic(
            settings,
            parameters=parameters,
            num_layers=layers,
            layer_parameters=layer_parameters(spec, passed.tensor_parallel_size),
            recomputes_layers=passed.keeps_inputs,
            group=around.data_group,
            speeds=speeds,
        ),
        overlaps=settings.overlap_comm,
        optimizer=optimizer_seconds(
            settings,
            elements=ceil_divide(shape.parameters, step.data_parallel_size) if settings.sharding_stage else shape.parameters,
            speeds=speeds,
            delivered=step.cluster.speed,
        ),
        tied_reduction=_tied_reduction(around, held),
    )


def _host_copies(around: Surroundings, layers: int) -> Size:
    """Copies of the inputs that recomputation starts from, with ``cpu_checkpointing``."""
    passed = around.step.passed
    if not passed.cpu_checkpointing:
        return 0.0
    groups = layers if passed.recompute is RecomputePolicy.full else ceil_divide(layers, passed.recompute_interval)
    kept = kept_input_bytes(around.step.spec, **passed.sizes, partition_activations=passed.partition_activations)
    return groups * kept / around.speeds.host_link_bandwidth


def _transfer_seconds(step: TrainingStep, residual: Size, speeds: Speeds) -> Size:
    """One boundary: all ranks of a stage send at once; a host whose ranks are all in one stage sends over the network."""
    stage_ranks = step.passed.tensor_parallel_size * step.data_parallel_size
    crosses = (stage_ranks * step.pipeline_parallel_size > speeds.slots) * 1.0
    senders = stage_ranks + (speeds.slots - stage_ranks) * (stage_ranks > speeds.slots)
    over_network = residual * senders / speeds.network_bandwidth + speeds.network_latency
    inside = residual / speeds.link_bandwidth + speeds.link_latency
    return crosses * over_network + (1 - crosses) * inside


def _tied_reduction(around: Surroundings, held: Sequence[Stage]) -> Size:
    """All-reduce of a tied embedding's gradient between the first and the last stage."""
    step = around.step
    spec, tp = step.spec, step.passed.tensor_parallel_size
    both = any(stage.has_embedding for stage in held) and any(stage.has_head for stage in held)
    neither = not any(stage.has_embedding or stage.has_head for stage in held)
    if not spec.tie_word_embeddings or both or neither:
        return 0.0 * tp
    gradient = ceil_divide(spec.vocab_size, tp) * spec.hidden_size * DTYPE_BYTES[step.settings.grad_accum_dtype]
    stride = tp * step.data_parallel_size * (step.pipeline_parallel_size - 1)
    return all_reduce_seconds(gradient, placed(num_ranks=2, stride=stride, slots=around.speeds.slots), around.speeds)
