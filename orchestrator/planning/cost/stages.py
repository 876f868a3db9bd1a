"""One micro-batch on one pipeline stage: what its forward and its backward pass are made of. Sizes may be arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.broadcast import larger, smaller
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
from orchestrator.planning.memory.shape import layer_matrices, rank_shape
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.planning.partition import Stage
from orchestrator.units import DTYPE_BYTES

OVERLAP_SLOWDOWN = 0.126
"""What an operation takes longer while a collective runs beside it (Hetu-Galvatron's published profile)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all stages of a step share, computed once."""

    step: TrainingStep
    speeds: Speeds
    layer: LayerSeconds
    embedding: tuple[Size, Size]
    head: tuple[Size, Size]
    """Forward and backward, as of the embedding."""
    layer_parameters: Size
    modules: tuple[float, ...]
    tensor_group: Placement
    data_group: Placement
    tensor_collective: Size
    """One all-reduce of the residual stream, or the gather and the scatter that replace it."""
    transfer: Size
    """Sending the residual stream to the next stage."""
    host_copy: Size
    """Copying the input of one recomputed layer or group to the host, or back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds of one micro-batch on one stage, and of what its ranks do once a step."""

    layers: int
    ends_forward: Size
    """Embedding, head and loss."""
    ends_backward: Size
    gradients: Size
    """Adding weight gradients up."""
    layer: LayerSeconds
    tensor_forward: Size
    tensor_backward: Size
    send_forward: Size
    send_backward: Size
    host_copies: Size
    """Of kept inputs, in each of the two passes."""
    traffic: Traffic
    overlaps: bool
    """Whether traffic runs beside computation."""
    modules: tuple[float, ...]
    """Shares of a layer that are fetched, and computed, at a time."""
    tied_reduction: Size
    optimizer: OptimizerSeconds
    recomputes_layers: bool

    @property
    def computed_forward(self) -> Size:
        """The forward pass with its collectives, never faster than the host launches it."""
        busy = self.layers * self.layer.forward + self.ends_forward + self.tensor_forward
        return larger(busy, self.layers * self.layer.launches) + self.host_copies

    @property
    def computed_backward(self) -> Size:
        """The same of the backward pass."""
        layer = self.layer
        busy = self.layers * (layer.backward + layer.recomputed) + self.ends_backward + self.gradients + self.tensor_backward
        passes = 2 if self.recomputes_layers else 1
        return larger(busy, passes * self.layers * layer.launches) + self.host_copies

    @property
    def forward(self) -> Size:
        """The forward pass with all that it waits for."""
        return self._beside(self.computed_forward, self.traffic.forward_gather) + self.send_forward

    @property
    def backward(self) -> Size:
        """The backward pass with all that it waits for."""
        traffic = self.traffic.backward_gather + self.traffic.backward_reduction
        return self._beside(self.computed_backward, traffic) + self.send_backward

    @property
    def after_backward(self) -> Size:
        """What is left of the reductions after the last backward pass."""
        reduction = self.traffic.boundary_reduction
        if self.overlaps:
            reduction = self._beside(self.computed_backward, reduction) - self.computed_backward
        return reduction + self.tied_reduction

    @property
    def update(self) -> Size:
        """From the global norm to the next step."""
        return self.optimizer.total + self.traffic.parameter_gather

    def _beside(self, computed: Size, traffic: Size) -> Size:
        """One after the other, or both at once: then the traffic of each module runs beside the computation before it."""
        if not self.overlaps:
            return computed + traffic
        following = (*self.modules[1:], self.modules[0])
        pairs = zip(self.modules, following, strict=True)
        longer = sum(larger(computed * share, traffic * ahead) for share, ahead in pairs)
        return longer + OVERLAP_SLOWDOWN * (computed + traffic - longer)


def common_to_stages(step: TrainingStep) -> Common:
    """The common part of all stages of ``step``."""
    passed, spec = step.passed, step.spec
    speeds = speeds_of(step.cluster, step.settings.dtype)
    tp = passed.tensor_parallel_size
    tensor_group = placed(num_ranks=tp, stride=1, slots=speeds.slots)
    residual = passed.micro_batch * passed.sequence_length * spec.hidden_size * passed.dtype_bytes
    if passed.sequence_parallel:
        collective = 2 * gather_seconds(residual, tensor_group, speeds)
    else:
        collective = all_reduce_seconds(residual, tensor_group, speeds)
    kept = kept_input_bytes(spec, **passed.sizes, partition_activations=passed.partition_activations)
    return Common(
        step=step,
        speeds=speeds,
        layer=layer_seconds(spec, passed, speeds),
        embedding=embedding_seconds(spec, passed, speeds),
        head=head_seconds(spec, passed, speeds),
        layer_parameters=layer_parameters(spec, tp),
        modules=_fetched_modules(step),
        tensor_group=tensor_group,
        data_group=placed(num_ranks=step.data_parallel_size, stride=tp, slots=speeds.slots),
        tensor_collective=collective,
        transfer=_transfer_seconds(step, residual, tensor_group, speeds),
        host_copy=kept / speeds.host_link_bandwidth if passed.cpu_checkpointing else 0.0,
    )


def _fetched_modules(step: TrainingStep) -> tuple[float, ...]:
    """ZeRO-3 fetches a module that exceeds the prefetch bucket while the one before it runs; smaller ones any time before."""
    if step.settings.zero_stage < 3:
        return (1.0,)
    matrices = layer_matrices(step.spec, 1)
    if max(matrices) <= step.settings.stage3_prefetch_bucket_size:
        return (1.0,)
    return tuple(matrix / sum(matrices) for matrix in matrices)


def stage_seconds(common: Common, held: Sequence[Stage]) -> tuple[StageSeconds, ...]:
    """The stages that one pipeline coordinate holds; each carries an equal share of what its ranks do once a step."""
    step, speeds, settings = common.step, common.speeds, common.step.settings
    shape = rank_shape(
        step.spec,
        held,
        tensor_parallel_size=step.passed.tensor_parallel_size,
        persistence_threshold=settings.stage3_param_persistence_threshold,
    )
    parameters = shape.parameters / len(held)
    updated = parameters / step.data_parallel_size if settings.sharding_stage else parameters
    optimizer = optimizer_seconds(settings, elements=updated, speeds=speeds)
    tied = _tied_reduction(common, held) / len(held)
    return tuple(_stage(common, stage, parameters, optimizer, tied) for stage in held)


def _stage(common: Common, stage: Stage, parameters: Size, optimizer: OptimizerSeconds, tied: Size) -> StageSeconds:
    step, passed, settings = common.step, common.step.passed, common.step.settings
    layers, collective = stage.num_layers, common.tensor_collective
    ends = [common.embedding] * stage.has_embedding + [common.head] * stage.has_head
    pipelined = step.pipeline_parallel_size > 1
    return StageSeconds(
        layers=layers,
        ends_forward=sum(forward for forward, _ in ends),
        ends_backward=sum(backward for _, backward in ends),
        gradients=gradient_seconds(
            parameters,
            accumulates=step.micro_batches > 1,
            gradient_bytes=DTYPE_BYTES[settings.grad_accum_dtype],
            dtype_bytes=passed.dtype_bytes,
            speeds=common.speeds,
        ),
        layer=common.layer,
        tensor_forward=(2 * layers + stage.has_embedding) * collective,
        tensor_backward=(2 * layers * (2 if passed.keeps_inputs else 1) + stage.has_head) * collective,
        send_forward=common.transfer * (pipelined and not stage.has_head),
        send_backward=common.transfer * (pipelined and not stage.has_embedding),
        host_copies=ceil_divide(layers, passed.group_size) * common.host_copy,
        traffic=data_parallel_traffic(
            settings,
            parameters=parameters,
            num_layers=layers,
            layer_parameters=common.layer_parameters,
            recomputes_layers=passed.keeps_inputs,
            group=common.data_group,
            speeds=common.speeds,
        ),
        overlaps=settings.overlap_comm,
        modules=common.modules,
        tied_reduction=tied,
        optimizer=optimizer,
        recomputes_layers=passed.keeps_inputs,
    )


def _transfer_seconds(step: TrainingStep, residual: Size, tensor_group: Placement, speeds: Speeds) -> Size:
    """One boundary. All ranks of a stage send at once, and those of one host share its network.

    DeepSpeed cuts what is whole on every tensor-parallel rank for the wire, and gathers it behind (``pipe_partitioned``);
    its DualPipeV engine cannot.
    """
    tp = step.passed.tensor_parallel_size
    stage_ranks = tp * step.data_parallel_size
    cut = step.passed.sequence_parallel or step.schedule is not PipelineSchedule.dual_pipe_v
    wire = residual / tp if cut else residual
    over_network = wire * smaller(stage_ranks, speeds.slots) / speeds.network_bandwidth + speeds.network_latency
    inside = wire / speeds.link_bandwidth + speeds.link_latency
    crosses = stage_ranks * step.pipeline_parallel_size > speeds.slots
    seconds = inside + (over_network - inside) * crosses
    gathered = cut and not step.passed.sequence_parallel
    return seconds + gather_seconds(residual, tensor_group, speeds) * gathered


def _tied_reduction(common: Common, held: Sequence[Stage]) -> Size:
    """All-reduce of a tied embedding's gradient between the first and the last stage, which both hold it."""
    step, tp = common.step, common.step.passed.tensor_parallel_size
    embedding, head = (any(getattr(stage, name) for stage in held) for name in ("has_embedding", "has_head"))
    if not step.spec.tie_word_embeddings or embedding == head:
        return 0.0 * tp
    elements = ceil_divide(step.spec.vocab_size, tp) * step.spec.hidden_size
    stride = tp * step.data_parallel_size * (step.pipeline_parallel_size - 1)
    pair = placed(num_ranks=2, stride=stride, slots=common.speeds.slots)
    return all_reduce_seconds(elements * DTYPE_BYTES[step.settings.grad_accum_dtype], pair, common.speeds)
