"""What a search chooses among: layouts, ZeRO, offload, schedules, recomputation, for one model, cluster and global batch.

GPipe is left out unless it is asked for: it is never faster than 1F1B and never holds less. Of the hosts all are used, or half
of them, a quarter, ..., so that twice the hosts never do worse. The optimization stays the same whatever is chosen: the global
batch, and the format that gradients are added up in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np

from orchestrator.config.enums import Accelerator, OffloadDevice, PipelineSchedule, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import UNIFORM, stages_per_rank

NONE, CPU, NVME = OffloadDevice.none, OffloadDevice.cpu, OffloadDevice.nvme
OFFLOADS = ((CPU, NONE), (CPU, CPU), (NVME, NONE), (NVME, CPU), (NVME, NVME))
"""Where optimizer states and parameters go, beside nowhere. Parameters leave with the optimizer: they are smaller than it."""
SCHEDULES = (PipelineSchedule.one_f_one_b, PipelineSchedule.dual_pipe_v)
SIZES = ("hosts", "tensor_parallel_size", "data_parallel_size", "micro_batch", "micro_batches")
RECOMPUTE = (RecomputePolicy.none, RecomputePolicy.selective, RecomputePolicy.full)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One point of the space: everything that a plan decides."""

    hosts: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    micro_batch: int
    micro_batches: int
    """Gradient accumulation steps."""
    schedule: PipelineSchedule
    sequence_parallel: bool
    zero_stage: int
    optimizer_device: OffloadDevice
    param_device: OffloadDevice
    recompute: RecomputePolicy

    @property
    def kind(self) -> tuple[Any, ...]:
        """What it is, sizes left out: plans of one kind differ by degrees."""
        return (
            self.tensor_parallel_size > 1,
            self.pipeline_parallel_size > 1 and self.schedule,
            self.zero_stage,
            self.optimizer_device,
            self.param_device,
            self.recompute,
        )

    @property
    def order(self) -> tuple[Any, ...]:
        """Of equally good choices the least of this is taken."""
        return astuple(self)

    @property
    def values(self) -> dict[str, Any]:
        """It as dotted options, the number of hosts left out."""
        return {
            "parallelism.tensor_parallel_size": self.tensor_parallel_size,
            "parallelism.pipeline_parallel_size": self.pipeline_parallel_size,
            "parallelism.data_parallel_size": None,
            "parallelism.sequence_parallel": self.sequence_parallel,
            "parallelism.schedule": self.schedule,
            "parallelism.partition_method": UNIFORM,
            "parallelism.partition_boundaries": None,
            "zero.stage": self.zero_stage,
            "offload.optimizer_device": self.optimizer_device,
            "offload.param_device": self.param_device,
            "activation_checkpointing.policy": self.recompute,
            "training.train_batch_size": self.data_parallel_size * self.micro_batch * self.micro_batches,
            "training.train_micro_batch_size_per_gpu": self.micro_batch,
            "training.gradient_accumulation_steps": self.micro_batches,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Choices that differ in sizes alone, which are arrays of one length."""

    pipeline_parallel_size: int
    schedule: PipelineSchedule
    sequence_parallel: bool
    zero_stage: int
    optimizer_device: OffloadDevice
    param_device: OffloadDevice
    recompute: RecomputePolicy
    hosts: np.ndarray
    tensor_parallel_size: np.ndarray
    data_parallel_size: np.ndarray
    micro_batch: np.ndarray
    micro_batches: np.ndarray

    @property
    def num_choices(self) -> int:
        """Their number."""
        return len(self.micro_batch)

    @property
    def num_devices(self) -> np.ndarray:
        """Devices that each of them uses."""
        return np.asarray(self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size)

    def choice(self, index: int) -> Choice:
        """One of them."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: int(values[name][index]) for name in SIZES}
        return Choice(**values)


def host_counts(available: int) -> list[int]:
    """All hosts, half of them, a quarter, ..., one."""
    return [available >> shift for shift in range(available.bit_length())]


def fastest_combinations(
    config: RunConfig, spec: ModelSpec, *, devices: Mapping[int, int], train_batch_size: int
) -> Iterator[Combination]:
    """Those of the space that no ``slower_combinations`` of another one reach.

    The space is that of these numbers of hosts, with so many devices together, narrowed by ``planner.fix``.
    """
    fix = config.planner.fix
    first: dict[str, Any] = {"optimizer_device": NONE, "param_device": NONE, "recompute": RECOMPUTE[0]}
    for (pipeline, splits), sizes in _sizes(config, spec, devices, train_batch_size).items():
        for schedule in _schedules(config, pipeline):
            fits = _fits_schedule(schedule, pipeline, spec, sizes)
            arrays = dict(zip(SIZES, sizes[:, fits], strict=True))
            if not fits.any():
                continue
            for sequence in (False, True) if splits else (False,):
                if splits and fix.sequence_parallel not in (None, sequence):
                    continue
                for stage in _zero_stages(config, pipeline):
                    if fix.zero_stage in (None, stage):
                        yield Combination(
                            pipeline_parallel_size=pipeline,
                            schedule=schedule,
                            sequence_parallel=sequence,
                            zero_stage=stage,
                            **first,
                            **arrays,
                        )


def slower_combinations(config: RunConfig, combination: Combination) -> Iterator[Combination]:
    """The next ones that save memory and never time: more is computed again, or more is offloaded. Each is reached once."""
    recompute = RECOMPUTE.index(combination.recompute)
    if recompute + 1 < len(RECOMPUTE):
        yield replace(combination, recompute=RECOMPUTE[recompute + 1])
    if recompute == 0 and combination.optimizer_device is NONE:
        for optimizer, param in OFFLOADS:
            if _can_offload(config, combination.zero_stage, optimizer, param):
                yield replace(combination, optimizer_device=optimizer, param_device=param)


def is_wanted(config: RunConfig, combination: Combination) -> bool:
    """Whether ``planner.fix`` allows it."""
    fix = config.planner.fix
    pinned = (
        (fix.recompute, combination.recompute),
        (fix.optimizer_device, combination.optimizer_device),
        (fix.param_device, combination.param_device),
    )
    return all(wanted in (None, value) for wanted, value in pinned)


def _sizes(config: RunConfig, spec: ModelSpec, devices: Mapping[int, int], batch: int) -> Mapping[tuple[int, bool], np.ndarray]:
    """Of each number of stages, with and without tensor parallelism: (hosts, tensor, data, micro-batch, accumulation)."""
    found: dict[tuple[int, bool], list[tuple[int, ...]]] = {}
    for count, total in devices.items():
        for tensor in _tensor_sizes(spec, total):
            for pipeline in divisors(total // tensor):
                data, rest = divmod(total, tensor * pipeline)
                if rest or pipeline > spec.num_hidden_layers or batch % data:
                    continue
                for micro in divisors(batch // data):
                    if _is_allowed(config, tensor=tensor, pipeline=pipeline, data=data, micro_batch=micro):
                        sizes = (count, tensor, data, micro, batch // data // micro)
                        found.setdefault((pipeline, tensor > 1), []).append(sizes)
    return {key: np.array(sizes, dtype=np.int64).T for key, sizes in found.items()}


def _is_allowed(config: RunConfig, **sizes: int) -> bool:
    fix = config.planner.fix
    pinned = {"tensor": fix.tp, "pipeline": fix.pp, "data": fix.dp, "micro_batch": fix.micro_batch}
    return all(pinned[name] in (None, size) for name, size in sizes.items())


def _tensor_sizes(spec: ModelSpec, devices: int) -> list[int]:
    """Sizes that divide the heads and the MLP; key heads may be copied."""
    return [
        size
        for size in divisors(devices)
        if spec.num_attention_heads % size == 0
        and spec.intermediate_size % size == 0
        and (spec.num_key_value_heads % size == 0 or size % spec.num_key_value_heads == 0)
    ]


def _schedules(config: RunConfig, pipeline: int) -> Sequence[PipelineSchedule]:
    if pipeline == 1:
        return (PipelineSchedule.one_f_one_b,)
    wanted = config.planner.fix.schedule
    return SCHEDULES if wanted is None else (wanted,)


def _fits_schedule(schedule: PipelineSchedule, pipeline: int, spec: ModelSpec, sizes: np.ndarray) -> np.ndarray:
    """DualPipeV has two stages a rank and needs two micro-batches for each."""
    if stages_per_rank(schedule, pipeline) == 1:
        return np.ones(sizes.shape[1], dtype=bool)
    enough = sizes[SIZES.index("micro_batches")] >= 2 * pipeline
    return np.asarray(enough & (2 * pipeline <= spec.num_hidden_layers))


def _zero_stages(config: RunConfig, pipeline: int) -> range:
    """A pipeline goes with stages 0 and 1. Stage 0 only where it adds gradients up in the same format as the others."""
    stages = (resolve_settings(replace(config, zero=replace(config.zero, stage=stage))) for stage in (0, 1))
    keeps_format = len({settings.grad_accum_dtype for settings in stages}) == 1
    lowest = 0 if keeps_format or config.planner.fix.zero_stage == 0 else 1
    return range(lowest, 2 if pipeline > 1 else 4)


def _can_offload(config: RunConfig, stage: int, optimizer: OffloadDevice, param: OffloadDevice) -> bool:
    """Optimizers leave from stage 1, parameters and anything to disk at stage 3; disks need a path.

    Where processors train, everything is in their RAM already: that is a place to go only if ``planner.fix`` says so.
    """
    on_disk = NVME in (optimizer, param)
    if on_disk and config.offload.nvme_path is None:
        return False
    fix = config.planner.fix
    if (
        config.cluster.accelerator is Accelerator.cpu
        and CPU in (optimizer, param)
        and CPU not in (fix.optimizer_device, fix.param_device)
    ):
        return False
    return stage >= (3 if on_disk or param is not NONE else 1)


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    low = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)})
