"""Kinds of changes that save memory, the cheapest in speed first: what ``fixes`` tries on a plan that does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from orchestrator.config.enums import Accelerator, OffloadDevice, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, OptimizerWrapper
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.partition import BALANCED, PARAMETERS, UNIFORM
from orchestrator.planning.plan import Plan

HOSTS = "cluster.hosts"
DEVICES_PER_HOST = "cluster.devices_per_host"
MICRO_BATCH = "training.train_micro_batch_size_per_gpu"
TENSOR = "parallelism.tensor_parallel_size"
PIPELINE = "parallelism.pipeline_parallel_size"
SEQUENCE_PARALLEL = "parallelism.sequence_parallel"
PARTITION_METHOD = "parallelism.partition_method"
RECOMPUTE = "activation_checkpointing.policy"

MOST_HOSTS = 1024
"""Hosts that are suggested at most."""
SMALL_BUCKET = 50_000_000
SMALL_LIVE_PARAMETERS = 100_000_000

Values: TypeAlias = Mapping[str, Any]
"""Dotted option -> its new value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One kind of change. ``steps`` go from the mildest to the strongest; ``meaning`` is said to the user."""

    meaning: str
    steps: tuple[Values, ...]
    combines: bool = True
    """Whether it is tried together with others."""


def possible_moves(config: RunConfig, plan: Plan, hosts: Sequence[Host] | None) -> list[Move]:
    """The moves that ``config`` has not made yet. Hosts of a hostfile (``hosts``) cannot be made more."""
    moves = [
        Move(meaning="sequence parallelism", steps=_sequence_parallel(config)),
        Move(meaning="stages balanced by time and memory", steps=_balanced(config), combines=False),
        Move(meaning="activations are computed again", steps=_recompute(config)),
        Move(meaning="a smaller micro-batch", steps=_micro_batches(plan)),
        Move(meaning="ZeRO shards more", steps=_zero_stages(config, plan)),
        Move(meaning="smaller buckets", steps=_buckets(plan.settings)),
        Move(
            meaning="gradients travel as they are accumulated, without a copy in another format",
            steps=_communication_format(plan.settings),
        ),
        *_offload(plan.settings),
        *_layouts(plan),
    ]
    if hosts is None:
        moves += _clusters(config)
    return [move for move in moves if move.steps]


def _sequence_parallel(config: RunConfig) -> tuple[Values, ...]:
    """It moves as many bytes as tensor parallelism alone."""
    parallelism = config.parallelism
    if parallelism.tensor_parallel_size == 1 or parallelism.sequence_parallel:
        return ()
    return ({SEQUENCE_PARALLEL: True},)


def _balanced(config: RunConfig) -> tuple[Values, ...]:
    """Boundaries that the user chose stay."""
    parallelism = config.parallelism
    if parallelism.pipeline_parallel_size == 1 or parallelism.partition_method not in (UNIFORM, PARAMETERS):
        return ()
    return ({PARTITION_METHOD: BALANCED},)


def _recompute(config: RunConfig) -> tuple[Values, ...]:
    """The attention alone costs least to compute again, whole layers save most."""
    policy = config.activation_checkpointing.policy
    if policy is RecomputePolicy.full:
        return ()
    wanted = (RecomputePolicy.selective, RecomputePolicy.full) if policy is RecomputePolicy.none else (RecomputePolicy.full,)
    return tuple({RECOMPUTE: policy} for policy in wanted)


def _micro_batches(plan: Plan) -> tuple[Values, ...]:
    assert plan.layout is not None
    size = plan.layout.train_micro_batch_size_per_gpu
    return tuple({MICRO_BATCH: size >> shift} for shift in range(1, size.bit_length()))


def _zero_stages(config: RunConfig, plan: Plan) -> tuple[Values, ...]:
    assert plan.layout is not None
    highest = 1 if plan.layout.pipeline_parallel_size > 1 else 3
    return tuple({"zero.stage": stage} for stage in range(config.zero.stage + 1, highest + 1))


def _buckets(settings: DeepSpeedSettings) -> tuple[Values, ...]:
    values: dict[str, Any] = {}
    if settings.reduce_bucket_size > SMALL_BUCKET:
        values["zero.reduce_bucket_size"] = SMALL_BUCKET
    if settings.stage3_max_live_parameters > SMALL_LIVE_PARAMETERS:
        values["zero.stage3_max_live_parameters"] = SMALL_LIVE_PARAMETERS
        values["zero.stage3_max_reuse_distance"] = SMALL_LIVE_PARAMETERS
    return (values,) if values and settings.zero_stage > 0 else ()


def _communication_format(settings: DeepSpeedSettings) -> tuple[Values, ...]:
    """BF16_Optimizer copies its whole gradient buffer into the format that travels, unless it is its own."""
    if settings.optimizer_wrapper is not OptimizerWrapper.bf16:
        return ()
    if settings.communication_data_type is settings.grad_accum_dtype:
        return ()
    return ({"communication.communication_data_type": settings.grad_accum_dtype},)


def _offload(settings: DeepSpeedSettings) -> Iterator[Move]:
    """Nothing leaves a CPU: its host RAM is what it has."""
    if settings.accelerator is Accelerator.cpu:
        return
    if not settings.offloads_optimizer:
        yield Move(meaning="optimizer states in host RAM", steps=({"offload.optimizer_device": OffloadDevice.cpu},))
    if not settings.offloads_parameters:
        yield Move(meaning="parameters in host RAM", steps=({"offload.param_device": OffloadDevice.cpu},))
    if settings.offloads_parameters and settings.offloads_optimizer:
        yield Move(
            meaning="parameters stay on the device", steps=({"offload.param_device": OffloadDevice.none},), combines=False
        )
    if settings.pins_memory and OffloadDevice.cpu in (settings.offload_optimizer_device, settings.offload_param_device):
        yield Move(meaning="host copies that are not page-locked", steps=({"offload.pin_memory": False},), combines=False)


def _layouts(plan: Plan) -> Iterator[Move]:
    """More tensor-parallel ranks inside a host, and more pipeline stages."""
    layout, model, cluster = plan.layout, plan.model, plan.cluster
    assert layout is not None and model is not None and cluster is not None
    tensor = _doublings(layout.tensor_parallel_size, cluster.devices_per_host)
    yield Move(meaning="more tensor-parallel ranks", steps=tuple({TENSOR: size} for size in tensor))
    pipeline = _doublings(layout.pipeline_parallel_size, min(model.num_hidden_layers, layout.world_size))
    yield Move(meaning="more pipeline stages", steps=tuple({PIPELINE: size} for size in pipeline))


def _clusters(config: RunConfig) -> Iterator[Move]:
    """Fewer processes that share a CPU's host, and the powers of two of hosts above those there are."""
    cluster = config.cluster
    if cluster.accelerator is Accelerator.cpu:
        fewer = range(cluster.devices_per_host - 1, 0, -1)
        yield Move(meaning="fewer processes on a host", steps=tuple({DEVICES_PER_HOST: count} for count in fewer))
    powers = range(cluster.hosts.bit_length(), MOST_HOSTS.bit_length())
    yield Move(meaning="more hosts", steps=tuple({HOSTS: 1 << power} for power in powers))


def _doublings(size: int, most: int) -> list[int]:
    sizes = []
    while (size := 2 * size) <= most:
        sizes.append(size)
    return sizes
