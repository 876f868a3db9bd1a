"""One micro-batch on one pipeline stage, with all that it waits for, and what its ranks do once a step. Sizes may be arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.broadcast import larger, smaller
from orchestrator.planning.cost.data_parallel import Traffic, data_parallel_traffic
from orchestrator.planning.cost.groups import all_reduce_seconds
from orchestrator.planning.cost.optimizer import OptimizerSeconds, optimizer_seconds
from orchestrator.planning.cost.placement import Placement, placed
from orchestrator.planning.cost.speeds import Speeds, speeds_of
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.cost.work import PassWork, StageWork, known_pass_work, stage_work
from orchestrator.planning.memory.shape import TensorShapes, known_shapes, layer_matrices, tensor_shapes
from orchestrator.planning.parameters import Size, ceil_divide
from orchestrator.planning.partition import Stage
from orchestrator.units import DTYPE_BYTES

OVERLAP_SLOWDOWN = 0.126
"""What an operation takes longer while a collective runs beside it (Hetu-Galvatron's published profile)."""


class Common(NamedTuple):
    """What the ranks of all stages of a step share, computed once."""

    step: TrainingStep
    speeds: Speeds
    shapes: TensorShapes
    data_group: Placement
    beside: Beside


class StageExchange(NamedTuple):
    """What the ranks of one stage do for each other and for the update."""

    parameters: Size
    """Elements on a rank."""
    traffic: Traffic
    tied_reduction: Size
    optimizer: OptimizerSeconds

    @property
    def update(self) -> Size:
        """From the global norm to the next step."""
        return self.optimizer.total + self.traffic.parameter_gather

    @property
    def waits(self) -> StageWaits:
        """What the passes and their end wait for."""
        traffic = self.traffic
        return StageWaits(
            forward=traffic.forward_gather,
            backward=traffic.backward_gather + traffic.backward_reduction,
            boundary=traffic.boundary_reduction,
            tied=self.tied_reduction,
        )


class StageWaits(NamedTuple):
    """Communication in each forward and backward pass, at the end of the last one, and after it."""

    forward: Size
    backward: Size
    boundary: Size
    tied: Size


class StagePasses(NamedTuple):
    """The passes of one micro-batch with all that they wait for, and what is left of the reductions after the last."""

    forward: Size
    backward: Size
    after_backward: Size


class StageSeconds(NamedTuple):
    """Seconds of one stage and what they are made of."""

    work: StageWork
    exchange: StageExchange
    send_forward: Size
    send_backward: Size
    passes: StagePasses


class Beside(NamedTuple):
    """Communication and computation, one after the other or both at once."""

    overlaps: bool
    modules: tuple[float, ...]
    """Shares of a layer that are fetched, and computed, at a time."""

    def seconds(self, computed: Size, traffic: Size) -> Size:
        """Of both; at once the traffic of each module runs beside the computation before it."""
        if not self.overlaps:
            return computed + traffic
        following = (*self.modules[1:], self.modules[0])
        pairs = zip(self.modules, following, strict=True)
        longer = sum(larger(computed * share, traffic * ahead) for share, ahead in pairs)
        return longer + OVERLAP_SLOWDOWN * (computed + traffic - longer)

    def passes(self, computed: tuple[Size, Size], sends: tuple[Size, Size], waits: StageWaits) -> StagePasses:
        """A stage whose passes compute and send for so long, forward and backward."""
        (ahead, back), (send_forward, send_backward) = computed, sends
        return StagePasses(
            forward=self.seconds(ahead, waits.forward) + send_forward,
            backward=self.seconds(back, waits.backward) + send_backward,
            after_backward=(self.seconds(back, waits.boundary) - back if self.overlaps else waits.boundary) + waits.tied,
        )


def common_to_stages(step: TrainingStep) -> Common:
    """The common part of all stages of ``step``."""
    speeds, settings = speeds_of(step.cluster, step.settings.dtype), step.settings
    tp = step.passed.tensor_parallel_size
    shapes_of = tensor_shapes if isinstance(tp, np.ndarray) else known_shapes
    return Common(
        step=step,
        speeds=speeds,
        shapes=shapes_of(step.spec, tensor_parallel_size=tp, persistence_threshold=settings.stage3_param_persistence_threshold),
        data_group=placed(num_ranks=step.data_parallel_size, stride=tp, slots=speeds.slots),
        beside=Beside(settings.overlap_comm, _fetched_modules(step)),
    )


def stage_seconds(common: Common, work: PassWork, transfer: Size, held: Sequence[Stage]) -> tuple[StageSeconds, ...]:
    """The stages that one pipeline coordinate holds."""
    step = common.step
    found = []
    for stage, exchange in zip(held, stage_exchanges(common, held), strict=True):
        own = stage_work(
            work,
            stage,
            parameters=exchange.parameters,
            accumulates=step.micro_batches > 1,
            gradient_bytes=DTYPE_BYTES[step.settings.grad_accum_dtype],
        )
        sends = sends_of(stage, transfer)
        passes = common.beside.passes((own.forward, own.backward), sends, exchange.waits)
        found.append(StageSeconds(own, exchange, *sends, passes))
    return tuple(found)


def sends_of(stage: Stage, transfer: Size) -> tuple[Size, Size]:
    """What ``stage`` sends forward and backward: the ends of the model have only one neighbour."""
    return 0.0 if stage.has_head else transfer, 0.0 if stage.has_embedding else transfer


def stage_exchanges(common: Common, held: Sequence[Stage]) -> tuple[StageExchange, ...]:
    """The stages that one pipeline coordinate holds; each carries an equal share of what its ranks do once a step."""
    step, speeds, settings = common.step, common.speeds, common.step.settings
    parameters = common.shapes.of_rank(held).parameters / len(held)
    updated = parameters / step.data_parallel_size if settings.sharding_stage else parameters
    optimizer = optimizer_seconds(settings, elements=updated, speeds=speeds)
    tied = _tied_reduction(common, held) / len(held)
    traffic = [
        data_parallel_traffic(
            settings,
            parameters=parameters,
            num_layers=stage.num_layers,
            layer_parameters=common.shapes.layer,
            recomputes_layers=step.passed.keeps_inputs,
            group=common.data_group,
            speeds=speeds,
        )
        for stage in held
    ]
    return tuple(StageExchange(parameters, each, tied, optimizer) for each in traffic)


def transfer_seconds(step: TrainingStep, *, residual_bytes: Size, tensor_gather: Size, speeds: Speeds) -> Size:
    """One boundary of the pipeline. All ranks of a stage send at once, and those of one host share its network.

    DeepSpeed cuts what is whole on every tensor-parallel rank for the wire, and gathers it behind (``pipe_partitioned``);
    its DualPipeV engine cannot.
    """
    if step.pipeline_parallel_size == 1:
        return 0.0
    tp = step.passed.tensor_parallel_size
    stage_ranks = tp * step.data_parallel_size
    cut = step.passed.sequence_parallel or step.schedule is not PipelineSchedule.dual_pipe_v
    wire = residual_bytes / tp if cut else residual_bytes
    over_network = wire * smaller(stage_ranks, speeds.slots) / speeds.network_bandwidth + speeds.network_latency
    inside = wire / speeds.link_bandwidth + speeds.link_latency
    crosses = stage_ranks * step.pipeline_parallel_size > speeds.slots
    seconds = inside + (over_network - inside) * crosses
    return seconds + tensor_gather if cut and not step.passed.sequence_parallel else seconds


def work_and_transfer(step: TrainingStep, common: Common) -> tuple[PassWork, Size]:
    """The work of a pass of ``step``, and the transfer between its stages."""
    work = known_pass_work(step.spec, step.passed, common.speeds)
    transfer = transfer_seconds(
        step, residual_bytes=work.residual_bytes, tensor_gather=work.tensor_gather, speeds=common.speeds
    )
    return work, transfer


def _fetched_modules(step: TrainingStep) -> tuple[float, ...]:
    """ZeRO-3 fetches a module that exceeds the prefetch bucket while the one before it runs; smaller ones any time before."""
    if step.settings.zero_stage < 3:
        return (1.0,)
    matrices = layer_matrices(step.spec, 1)
    if max(matrices) <= step.settings.stage3_prefetch_bucket_size:
        return (1.0,)
    return tuple(matrix / sum(matrices) for matrix in matrices)


def _tied_reduction(common: Common, held: Sequence[Stage]) -> Size:
    """All-reduce of a tied embedding's gradient between the first and the last stage, which both hold it."""
    step, tp = common.step, common.step.passed.tensor_parallel_size
    if not step.spec.tie_word_embeddings:
        return 0.0
    embedding, head = (any(getattr(stage, name) for stage in held) for name in ("has_embedding", "has_head"))
    if embedding == head:
        return 0.0
    elements = ceil_divide(step.spec.vocab_size, tp) * step.spec.hidden_size
    stride = tp * step.data_parallel_size * (step.pipeline_parallel_size - 1)
    pair = placed(num_ranks=2, stride=stride, slots=common.speeds.slots)
    return all_reduce_seconds(elements * DTYPE_BYTES[step.settings.grad_accum_dtype], pair, common.speeds)
