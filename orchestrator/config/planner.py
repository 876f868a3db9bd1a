"""Options of the planner: what the estimate leaves free, and what the search looks for."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.config.enums import Objective, OffloadDevice, PipelineSchedule, RecomputePolicy


@dataclass(kw_only=True, slots=True)
class PlannerFix:
    """Choices that ``plan`` does not make itself; null = it chooses."""

    tp: int | None = None
    """Tensor-parallel size."""
    pp: int | None = None
    """Pipeline stages."""
    dp: int | None = None
    """Data-parallel size."""
    micro_batch: int | None = None
    """Sequences of one pass of one rank."""
    schedule: PipelineSchedule | None = None
    """Pipeline schedule, where there is a pipeline."""
    sequence_parallel: bool | None = None
    """Sequence parallelism, where there is tensor parallelism."""
    zero_stage: int | None = None
    """ZeRO stage."""
    optimizer_device: OffloadDevice | None = None
    """Where optimizer states live."""
    param_device: OffloadDevice | None = None
    """Where parameters live between uses."""
    recompute: RecomputePolicy | None = None
    """What is computed again in the backward pass."""


@dataclass(kw_only=True, slots=True)
class PlannerConfig:
    """The estimate, and the search for the best plan."""

    memory_margin: float = 0.05
    """Share of every capacity that should stay free, 0 to 0.5. Inside it an estimate is flagged, above the capacity refused."""
    objective: Objective = Objective.time
    """plan: time = the fastest step, hosts may stay idle; cost = fewest device hours; fewest_hosts = the least that fits."""
    hosts: str | None = None
    """plan: numbers of hosts to compare, ``1..64`` (powers of two between them) or ``'4,8,12'``; null = no comparison."""
    tokens: float = 1e12
    """plan: tokens of the whole training, for its days and device hours."""
    fix: PlannerFix = field(default_factory=PlannerFix)
    """plan: choices that are made already (``planner.fix.tp=8``)."""
    apply: str | None = None
    """plan: write the best plan to this file, an experiment that validate and launch take (``conf.d/experiment/best.yaml``)."""
