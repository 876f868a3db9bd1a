"""How ranks are arranged and batches divided: the one owner of this arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from orchestrator.config.schema import RunConfig
from orchestrator.config.training import TrainingConfig
from orchestrator.findings import Finding, error, has_error

_LARGEST = 10**9


class Coordinate(NamedTuple):
    """Place of a rank on DeepSpeed's axes."""

    pipe: int
    data: int
    model: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Sizes of the three parallel axes and of the batches; ``train = micro x accumulation x data-parallel size`` holds."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage; they are consecutive."""
        return self.tensor_parallel_size * self.data_parallel_size

    def coordinate(self, rank: int) -> Coordinate:
        """Where ``rank`` stands. DeepSpeed's axis order is (pipe, data, model), the last varying fastest."""
        assert 0 <= rank < self.world_size
        pipe, rest = divmod(rank, self.ranks_per_stage)
        data, model = divmod(rest, self.tensor_parallel_size)
        return Coordinate(pipe=pipe, data=data, model=model)

    def rank(self, coordinate: Coordinate) -> int:
        """The rank at ``coordinate``: the inverse of ``coordinate``."""
        pipe, data, model = coordinate
        assert 0 <= pipe < self.pipeline_parallel_size
        assert 0 <= data < self.data_parallel_size
        assert 0 <= model < self.tensor_parallel_size
        return (pipe * self.data_parallel_size + data) * self.tensor_parallel_size + model

    def stage_ranks(self, stage: int) -> range:
        """The ranks of pipeline stage ``stage``."""
        return range(stage * self.ranks_per_stage, (stage + 1) * self.ranks_per_stage)

    def to_dict(self) -> dict[str, int]:
        """The ``layout`` object of ``output=json``."""
        return {"world_size": self.world_size, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParallelLayout:
        """Read back what ``to_dict`` wrote."""
        return cls(**{name: int(values[name]) for name in cls.__dataclass_fields__})


def layout_from_config(config: RunConfig, num_devices: int) -> tuple[ParallelLayout | None, list[Finding]]:
    """Divide ``num_devices`` and the batch as ``config`` says, or say everything that stands against it."""
    findings = list(_axis_findings(config))
    if has_error(findings):
        return None, [*findings, *_batch_findings(config.training, None)]
    parallelism = config.parallelism
    tp, pp = parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size
    findings = list(_world_findings(config, num_devices))
    dp = num_devices // (tp * pp)
    findings += _batch_findings(config.training, None if has_error(findings) else dp)
    if has_error(findings):
        return None, findings
    train, micro, accumulation = _batch_sizes(config.training, dp)
    layout = ParallelLayout(
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        train_batch_size=train,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=accumulation,
    )
    return layout, findings


def legal_splits(num_devices: int) -> list[tuple[int, int]]:
    """The (tensor, pipeline) sizes whose product divides ``num_devices``, smallest products first."""
    divisors = [size for size in range(1, num_devices + 1) if num_devices % size == 0]
    splits = [(tp, product // tp) for product in divisors for tp in divisors if product % tp == 0]
    return sorted(splits, key=lambda split: (split[0] * split[1], split[1]))


def _axis_findings(config: RunConfig) -> Iterator[Finding]:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = getattr(config.parallelism, name)
        if value is not None and not 1 <= value <= _LARGEST:
            yield error(
                "parallel-size",
                f"parallelism.{name}",
                f"{value} is not a number of at least 1",
                f"set parallelism.{name}=1 or more",
            )


def _world_findings(config: RunConfig, num_devices: int) -> Iterator[Finding]:
    parallelism = config.parallelism
    tp, pp, dp = parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size, parallelism.data_parallel_size
    if num_devices % (tp * pp) != 0:
        field = "tensor_parallel_size" if tp > 1 else "pipeline_parallel_size"
        yield error(
            "world-size",
            f"parallelism.{field}",
            f"tensor {tp} x pipeline {pp} = {tp * pp} does not divide the {num_devices} devices of the cluster",
            f"use one of tensor x pipeline = {_listed_splits(num_devices)}, or change the number of devices",
        )
    elif dp is not None and tp * pp * dp != num_devices:
        yield error(
            "world-size",
            "parallelism.data_parallel_size",
            f"pipeline {pp} x data {dp} x tensor {tp} = {tp * pp * dp}, and the cluster has {num_devices} devices",
            f"set parallelism.data_parallel_size={num_devices // (tp * pp)}, or null",
        )


def _listed_splits(num_devices: int) -> str:
    splits = legal_splits(min(num_devices, 4096)) if num_devices <= 4096 else [(1, 1)]
    shown = ", ".join(f"{tp}x{pp}" for tp, pp in splits[:12])
    return shown + (", ..." if len(splits) > 12 else "")


def _batch_findings(training: TrainingConfig, dp: int | None) -> Iterator[Finding]:
    given = {
        "train_batch_size": training.train_batch_size,
        "train_micro_batch_size_per_gpu": training.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
    }
    sound = True
    for name, value in given.items():
        if value is not None and not 1 <= value <= _LARGEST:
            sound = False
            yield error(
                "batch-size", f"training.{name}", f"{value} is not a number of at least 1", f"set training.{name}=1 or more"
            )
    if training.train_batch_size is None and training.train_micro_batch_size_per_gpu is None:
        yield error(
            "batch-size",
            "training.train_batch_size",
            "neither train_batch_size nor train_micro_batch_size_per_gpu is given",
            "set training.train_micro_batch_size_per_gpu=1",
        )
    elif sound and dp is not None:
        yield from _identity_findings(training, dp)


def _identity_findings(training: TrainingConfig, dp: int) -> Iterator[Finding]:
    train, micro, accumulation = _batch_sizes(training, dp)
    product = micro * accumulation * dp
    if train == product and product > 0:
        return
    asked_micro, asked_accumulation = training.train_micro_batch_size_per_gpu, training.gradient_accumulation_steps
    if asked_micro is not None and asked_accumulation is not None:
        message = f"{train} is not micro-batch {micro} x accumulation {accumulation} x data-parallel size {dp} = {product}"
        fix = f"set training.train_batch_size={product}, or null"
    else:
        name, size = ("micro-batch", asked_micro) if asked_micro is not None else ("accumulation", asked_accumulation or 1)
        unit = size * dp
        nearest = max(unit, round(train / unit) * unit)
        message = f"{train} is not a multiple of {name} {size} x data-parallel size {dp} = {unit}"
        fix = f"set training.train_batch_size={nearest}, the nearest multiple"
    yield error("batch-identity", "training.train_batch_size", message, fix)


def _batch_sizes(training: TrainingConfig, dp: int) -> tuple[int, int, int]:
    """(train, micro, accumulation), what is null derived as DeepSpeed derives it; indivisible sizes are rounded down."""
    train, micro = training.train_batch_size, training.train_micro_batch_size_per_gpu
    accumulation = training.gradient_accumulation_steps
    if train is None:
        assert micro is not None
        accumulation = accumulation or 1
        return micro * accumulation * dp, micro, accumulation
    if micro is None:
        accumulation = accumulation or 1
        return train, train // (accumulation * dp), accumulation
    return train, micro, train // (micro * dp) if accumulation is None else accumulation
